#!/bin/sh
# Run once by who has an Oracle: the suite, the plans, the speed. Send the archive back.
#
#     MSGWORKER_TEST_ORACLE_URL='oracle+oracledb://mwtest:...@host:1521/?service_name=pdb1' \
#         sh proof/oracle_live.sh [FOLDER]
#
# The login needs a schema of its own, empty at first, since the tests drop all that is in it:
#     CREATE USER mwtest IDENTIFIED BY "..." QUOTA UNLIMITED ON users;
#     GRANT CREATE SESSION, CREATE TABLE, CREATE SEQUENCE, CREATE VIEW, CREATE TRIGGER TO mwtest;
# To be seen with more rights, not needed: SELECT on v$version and v$parameter.
# The password is in no file of the archive. Exit code: 0 if everything passed.
set -u

if [ -z "${MSGWORKER_TEST_ORACLE_URL:-}" ]; then
    sed -n '2,12p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
out=${1:-oracle-live-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
cd "$root" || exit 2

python=${PYTHON:-}
if [ -z "$python" ]; then
    make .venv/.dev >"$out/install.txt" 2>&1 || { tail -n 5 "$out/install.txt" >&2; exit 2; }
    python=.venv/bin/python
fi
# The other databases are not asked for; what needs them is skipped.
tests=${ORACLE_LIVE_TESTS:-tests/contract tests/store}
code=0

step() {
    name=$1
    shift
    echo "$name ..."
    "$@" >"$out/$name.txt" 2>&1
    done=$?
    tail -n 1 "$out/$name.txt"
    if [ "$done" -ne 0 ]; then
        code=1
    fi
}

step facts "$python" -m proof.oracle.live facts
# shellcheck disable=SC2086  # several words
step suite "$python" -m pytest -q -p no:cacheprovider --tb=short --durations=20 \
    -k "oracle and not oracle-mariadb" $tests
step plans "$python" -m proof.oracle.live plans
step bench "$python" -m proof.oracle.live bench

password=$("$python" -c 'import os, sqlalchemy as sa
print(sa.make_url(os.environ["MSGWORKER_TEST_ORACLE_URL"]).password or "")')
if [ -n "$password" ] && grep -rqF -- "$password" "$out"; then
    echo "the password stands in a file of $out: it is not packed" >&2
    exit 1
fi
tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")" || exit 1
echo "send back $out.tar.gz"
exit "$code"
