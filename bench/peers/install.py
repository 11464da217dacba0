"""Get a peer into a folder of its own; nothing of it ever comes into the project's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

from bench.peers.peer import SCRIPTS, Peer

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("MSGWORKER_PEERS", ROOT / ".peers"))
NODE = (22, 18)
"""What the Node peers need at least; beside an older one the package `node` is installed."""
BESIDE_OURS = ("SQLAlchemy", "psycopg")
"""What a release of ours gets in the very version that it has here: the release alone differs."""
SECONDS = 600


class NotInstalled(Exception):
    """A peer that cannot be had here; the text says why and what would help."""


def install(peer: Peer, folder: Path = FOLDER) -> list[str]:
    """Install what is missing and lay the scripts beside it; the command that runs its script."""
    home = folder / peer.name
    home.mkdir(parents=True, exist_ok=True)
    packages = list(peer.packages)
    if peer.manager == "npm" and _version(shutil.which("node")) < NODE:
        packages.append(f"node@{NODE[0]}")
    if peer.manager == "release":
        packages += [f"{name}=={version(name)}" for name in BESIDE_OURS]
    wanted, made = "\n".join(packages), home / "installed"
    if not made.exists() or made.read_text() != wanted:
        by = {"pip": _by_pip, "npm": _by_npm, "release": _by_release}
        by[peer.manager](home, packages)
        made.write_text(wanted)
    for script in SCRIPTS.iterdir():
        if script.is_file():
            shutil.copy(script, home)
    return [_interpreter(peer, home), str(home / peer.script)]


def _by_pip(home: Path, packages: list[str]) -> None:
    python = home / "venv" / "bin" / "python"
    _run([sys.executable, "-m", "venv", str(home / "venv")], home, "apt-get install python3-venv")
    _run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        home,
        "see that pip reaches its package index",
    )


def _by_release(home: Path, packages: list[str]) -> None:
    """From the commit of that release in this repository."""
    number = packages[0].rpartition("==")[2]
    archive, source = home / "source.tar", home / "source"
    commit = _commit_of(number)
    _run(
        ["git", "archive", "--format=tar", f"--output={archive}", commit],
        ROOT,
        "fetch the whole history: git fetch --unshallow",
    )
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(source, filter="data")
    archive.unlink()
    _by_pip(home, [f"{source}[postgresql]", *packages[1:]])


def _commit_of(number: str) -> str:
    """The commit of a release: that of its tag, else the newest that begins so."""
    tagged = ["git", "rev-parse", "--verify", "--quiet", f"v{number}^{{commit}}"]
    subject = f"--grep=^Release {re.escape(number)}\\b"
    named = ["git", "log", "--max-count=1", "--format=%H", subject]
    try:
        for command in (tagged, named):
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
            )
            if done.stdout.strip():
                return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"git failed ({type(error).__name__}): no history to look in") from error
    raise NotInstalled(
        f"the history here has no commit of the release {number}; in a shallow clone fetch the "
        "rest: git fetch --unshallow"
    )


def _by_npm(home: Path, packages: list[str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is not there; install it, for example: apt-get install npm")
    (home / "package.json").write_text('{"private": true, "type": "module"}\n')
    _run(
        [npm, "install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", *packages],
        home,
        "see that npm reaches its registry",
    )


def _run(command: list[str], home: Path, hint: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=home, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]} failed ({type(error).__name__}); {hint}") from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = said[-1].strip() if said else f"exit code {done.returncode}"
        raise NotInstalled(f"{Path(command[0]).name} could not install it: {last}; {hint}")


def _interpreter(peer: Peer, home: Path) -> str:
    if peer.manager != "npm":
        return str(home / "venv" / "bin" / "python")
    own = home / "node_modules" / ".bin" / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if _version(found) < NODE:
        wanted = ".".join(map(str, NODE))
        raise NotInstalled(f"Node {wanted} or later is needed, and npm's package `node` has none")
    return str(found)


def _version(node: str | None) -> tuple[int, ...]:
    """Of a Node; (0,) if it is not there or does not run."""
    if node is None:
        return (0,)
    try:
        said = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.match(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0,)
