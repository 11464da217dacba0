"""Where a setting comes from, and what no layer may hold."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from msgworker import MessageTable
from msgworker.config import SETTINGS, Settings, fill, load, nearest
from msgworker.errors import ConfigError
from tests.support.programs import files


def test_each_layer_wins_over_those_below(tmp_path: Path) -> None:
    layers: dict[str, Any] = {"folder": tmp_path, "environ": {}}
    seen = [load(**layers)]
    files(tmp_path, pyproject="threads = 5")
    seen.append(load(**layers))
    files(tmp_path, own="threads = 6")
    seen.append(load(**layers))
    layers["environ"] = {"MSGWORKER_THREADS": "7"}
    seen.append(load(**layers))
    layers["flags"] = {"threads": "8"}
    seen.append(load(**layers))
    layers |= {"keywords": {"threads": 9}, "keywords_from": "crm:app"}
    seen.append(load(**layers))
    assert [(conf["threads"], conf.origins["threads"]) for conf in seen] == [
        (4, "default"),
        (5, "pyproject.toml [tool.msgworker]"),
        (6, "msgworker.toml"),
        (7, "environment MSGWORKER_THREADS"),
        (8, "option --threads"),
        (9, "crm:app"),
    ]


def test_a_flag_that_is_not_given_hides_nothing(tmp_path: Path) -> None:
    files(tmp_path, own="grace = '25m'")
    conf = load({"grace": None}, folder=tmp_path, environ={})
    assert conf["grace"] == 1500
    assert conf.given("grace")
    assert load({"grace": 0}, folder=tmp_path, environ={})["grace"] == 0
    assert not conf.given("linger")


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("thraeds = 4", "unknown setting 'thraeds' in msgworker.toml; did you mean threads?"),
        ("xyzzy = 4", "known are: url, table,"),
        ("web_port = 1\n[web]\nport = 2", "web_port is set twice in msgworker.toml: as port in"),
        ("threads = 0", "threads in msgworker.toml must be a whole number from 1 to 1024, got 0"),
        ("threads = 1.5", "got 1.5"),
        ("threads = true", "got True"),
        ("threads = 1000000000", "got 1000000000"),
        ("lease_seconds = 0", "lease_seconds in msgworker.toml must be a number from 0.3"),
        ("lease_seconds = inf", "got inf"),
        ("lease_seconds = nan", "got nan"),
        ("poll_seconds = -1", "got -1"),
        ("poll_seconds = 0", "got 0"),
        ("max_tries = 0", "max_tries in msgworker.toml must be a whole number from 1"),
        ("grace = 'soon'", "must be a duration such as 30, 30s, 25m, 2h or 30d, got 'soon'"),
        ("grace = [1]", "got [1]"),
        ("topics = [1]", "must be a list of texts"),
        ("notify = 'perhaps'", "must be true or false"),
        ("on_dead = 'explode'", "must be one of continue, block; got 'explode'"),
        ("url = 5", "url in msgworker.toml must be a text"),
        ("url = ''", "url in msgworker.toml must be a text, but is empty"),
        ("columns = 5", "must be a table of column names"),
        ("[columns]\nmsg_id = 5", "must be a column's name or false"),
        ("where = 5", "where in msgworker.toml is a mapping"),
        ("where = 'tenant = 7'", "must look like {"),
        ('where = \'{"a": 1, "a": 2}\'', "must look like {"),
        ("where = '[7]'", "is a mapping"),
        ("[where]\ntenant = 7.5", "where in msgworker.toml: column 'tenant' takes texts, whole"),
        ("[where]\nuntil = 2026-11-01", "takes texts, whole numbers"),
        ("[where]\ntenant = []", "needs 1 to 100 values"),
        ("[where]\ntenant = [7, '8']", "of one type"),
        ("[where]\nname = \"x' OR \\\\' 1=1\"", "printable characters without backslash"),
        ("a = = 1", "line 1"),
        ("a = 1\nb = ]", "line 2"),
        ("a = 1\na = 2", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        ("!!python/object:os.system", "is not TOML"),
    ],
)
def test_wrong_file_names_the_place(tmp_path: Path, own: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(folder=files(tmp_path, own=own), environ={})
    assert text in str(caught.value)


UTF8 = ["TABLE", "LOCKS", "SCOPE", "TOPICS", "COLUMNS", "WEB_LABEL", "WEB_ROOT_PATH", "WEB_REDACT"]


@pytest.mark.parametrize("name", [*UTF8, "WEB_ALLOWED_HOSTS"])
def test_a_byte_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    """As the environment of a shell may have it; a page with such a label could not be sent."""
    given = {f"MSGWORKER_{name}": "\udcff"}
    with pytest.raises(ConfigError, match=f"MSGWORKER_{name} .*must be a text in UTF-8"):
        load(folder=tmp_path, environ=given)
    with pytest.raises(ConfigError, match="--topic must be a text in UTF-8"):
        SETTINGS["topics"].read(("a", "\udcff"), "--topic")


def test_wrong_bytes_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "msgworker.toml"
    for raw, text in (
        (b"\xef\xbb\xbfthreads = 4", "line 1 has a byte order mark"),
        (b"threads = 4\ntable = '\xff'", "line 2 is not UTF-8"),
        ("threads = 4".encode("utf-16"), "is not UTF-8"),
        (b"#" * 1_000_001, "too large"),
    ):
        path.write_bytes(raw)
        with pytest.raises(ConfigError, match=text):
            load(folder=tmp_path, environ={})


def test_a_folder_or_a_missing_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "msgworker.toml").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        load(folder=tmp_path, environ={})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(file=tmp_path / "absent.toml", environ={})


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(file=fifo, environ={})


def test_pyproject_without_our_section_is_fine(tmp_path: Path) -> None:
    for text in ("", "[tool]\nx = 1", "[tool.other]\nthreads = 'x'", "tool = 5"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert load(folder=tmp_path, environ={})["threads"] == 4
    (tmp_path / "pyproject.toml").write_text("[tool]\nmsgworker = 5")
    with pytest.raises(ConfigError, match="must be a table"):
        load(folder=tmp_path, environ={})


def test_environment_is_checked_and_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    foreign = {
        "MSGWORKER_TEST_MYSQL_URL": "x",
        "MSGWORKER_SERVICE_HOST": "10.0.0.1",
        "MSGWORKER_PORT": "tcp://10.0.0.1:80",
        "MSGWORKER_PORT_80_TCP_ADDR": "10.0.0.1",
        "MSGWORKERS": "x",
    }
    assert load(environ=foreign, folder=tmp_path)["threads"] == 4
    with pytest.raises(ConfigError, match=r"MSGWORKER_THREDS .*did you mean MSGWORKER_THREADS"):
        load(environ={"MSGWORKER_THREDS": "4"}, folder=tmp_path)
    with pytest.raises(ConfigError, match="MSGWORKER_THREADS must be a whole number"):
        load(environ={"MSGWORKER_THREADS": "four"}, folder=tmp_path)


SERVICES = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "5432",
    "SERVICE_PORT_HTTP_METRICS": "9090",
    "PORT": "tcp://10.0.0.1:5432",
    "PORT_5432_TCP": "tcp://10.0.0.1:5432",
    "PORT_5432_TCP_ADDR": "10.0.0.1",
    "PORT_5432_TCP_PORT": "5432",
    "PORT_5432_TCP_PROTO": "tcp",
    "PORT_53_UDP": "udp://10.0.0.1:53",
    "PORT_9_SCTP_PROTO": "sctp",
}


@pytest.mark.parametrize("service", ["", "POSTGRES_", "WEB_", "CRM_WEB_2_", "THREADS_"])
@pytest.mark.parametrize("ending", SERVICES)
def test_variables_of_a_kubernetes_service_are_left_alone(
    tmp_path: Path, service: str, ending: str
) -> None:
    environ = {f"MSGWORKER_{service}{ending}": SERVICES[ending]}
    assert load(environ=environ, folder=tmp_path)["threads"] == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "8080"),
        ("DB_PORT", "5432"),
        ("SUPPORT", "tcp://10.0.0.1:1"),
        ("SERVICE", "x"),
        ("PORTS", "tcp://10.0.0.1:1"),
        ("WEB_PORT_TCP", "x"),
        ("WEB_PORT_80", "x"),
        ("WEB_PORT_80_HTTP", "x"),
        ("WEB_PORT_80_TCP_HOST", "x"),
        ("WEB_SERVICE_HOSTS", "x"),
        ("MAX_TRYS", "3"),
        ("LEASE_SECOND", "3"),
        ("web_SERVICE_HOST", "x"),
    ],
)
def test_a_variable_that_no_service_gives_is_an_unknown_setting(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting MSGWORKER_{name} "):
        load(environ={f"MSGWORKER_{name}": value}, folder=tmp_path)


def test_lists_and_columns_from_text(tmp_path: Path) -> None:
    environ = {
        "MSGWORKER_TOPICS": "a, b",
        "MSGWORKER_COLUMNS": "msg_id=ID, payload=",
        "MSGWORKER_NOTIFY": "Yes",
    }
    conf = load(environ=environ, folder=tmp_path)
    assert conf["topics"] == ("a", "b")
    assert conf["columns"] == {"msg_id": "ID", "payload": None}
    assert conf["notify"] is True
    with pytest.raises(ConfigError, match="must look like"):
        load(environ={"MSGWORKER_COLUMNS": "ID"}, folder=tmp_path)
    as_json = ' {"msg_id": "a,b", "payload": null, "topic": false}'
    names = {"msg_id": "a,b", "payload": None, "topic": None}
    assert load(environ={"MSGWORKER_COLUMNS": as_json}, folder=tmp_path)["columns"] == names
    for odd in ("{", '{"msg_id": "a", "msg_id": "b"}', '{"msg_id": 5}'):
        with pytest.raises(ConfigError, match="MSGWORKER_COLUMNS"):
            load(environ={"MSGWORKER_COLUMNS": odd}, folder=tmp_path)


def test_where_is_a_table_or_json(tmp_path: Path) -> None:
    own = '[where]\ntenant = 7\ndeleted = false\nkind = ["a", "b"]'
    conf = load(folder=files(tmp_path, own=own), environ={})
    assert conf["where"] == {"tenant": 7, "deleted": False, "kind": ["a", "b"]}
    wanted = MessageTable("legacy", where=conf["where"]).where
    assert wanted == (("tenant", (7,)), ("deleted", (False,)), ("kind", ("a", "b")))
    text = '{"tenant": [7, 8], "gone_at": null}'
    for conf in (
        load(environ={"MSGWORKER_WHERE": text}, folder=tmp_path),
        load({"where": text}, environ={}, folder=tmp_path),
        load(folder=files(tmp_path, own=f"where = '{text}'"), environ={}),
    ):
        assert conf["where"] == {"tenant": [7, 8], "gone_at": None}
    assert (
        load(keywords={"where": wanted}, environ={}, folder=tmp_path)["where"]["deleted"] is False
    )


def test_placeholders_are_encoded_where_a_url_needs_it() -> None:
    environ = {"PW": "p@ss:w/rd#%?", "HOST": "db:5433", "ALL": "sqlite:///a b.db", "Q": "a&b"}
    assert fill("${ALL}", environ) == "sqlite:///a b.db"
    assert fill("sqlite:///${HOST}/x.db", environ) == "sqlite:///db:5433/x.db"
    url = fill("postgresql://u:${PW}@${HOST}/n?sslpassword=${Q}", environ)
    assert url == "postgresql://u:p%40ss%3Aw%2Frd%23%25%3F@db:5433/n?sslpassword=a%26b"


def test_placeholder_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environment variable DB_PASSWORD, which is not set"):
        fill("postgresql://u:${DB_PASSWORD}@h/n", {})


def test_defaults_are_those_of_the_library() -> None:
    table, app = MessageTable(), Settings()
    for name, setting in SETTINGS.items():
        if setting.group == "table" and name not in ("table", "columns", "where"):
            assert getattr(table, name) == setting.default, name
        if setting.group == "app":
            assert getattr(app, name) == setting.default, name
    assert table.name == SETTINGS["table"].default
    assert {name for name, s in SETTINGS.items() if s.group == "app"} == {
        one.name for one in fields(Settings)
    }


def test_nearest_tells_all_where_none_is_near() -> None:
    assert nearest("tabel", ["table", "url"]) == "did you mean table?"
    assert nearest("q", ["table", "url"]) == "known are: table, url"
