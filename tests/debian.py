"""Pythons and servers that this Debian does not have: from the packages of a later one, or from its
sources.

Nothing is installed: a package is unpacked into a folder, with its C library and all others that it
needs, and its program is told to load those. The servers of this machine's Debian are asked, with
its keys.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers import CannotHave, install, run

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LISTS = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
RELEASES = {"3.14": "sid", "3.13t": "trixie"}  # version -> the Debian that it is taken from
HOME = Path(__file__).parents[1] / ".matrix"  # what is unpacked is kept here


@dataclass(frozen=True)
class Package:
    """of a server. names: the packages; programs: the folders of its programs, in the unpacked
    tree."""

    names: tuple[str, ...]
    programs: tuple[str, ...]
    release: str = "sid"


SERVERS = {
    "postgresql-18": Package(("postgresql-18",), ("usr/lib/postgresql/18/bin",)),
    "mariadb-11.8": Package(
        ("mariadb-server-core", "mariadb-client-core", "galera-4"), ("usr/sbin", "usr/bin")
    ),
    "mysql-9.7": Package(("mysql-server-core", "mysql-client-core"), ("usr/sbin", "usr/bin")),
}
"""The servers that are unpacked."""


class Apt:
    """apt-get with lists and a state of its own, in a folder: to it no package is installed."""

    def __init__(self, folder: Path, kind: str, release: str) -> None:
        """kind: deb = packages, deb-src = sources."""
        self._folder = folder
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        told = f"{kind} [signed-by={_KEYS}] {_archive()} {release} main\n"
        (folder / "sources.list").write_text(told)
        settings = {
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
        }
        (folder / "apt.conf").write_text("".join(f'{k} "{v}";\n' for k, v in settings.items()))
        self.do("update")

    def do(self, *arguments: str) -> None:
        done = subprocess.run(
            ["apt-get", "-q", *arguments],
            cwd=self._folder,
            env={**os.environ, "APT_CONFIG": str(self._folder / "apt.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            wrong = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            raise CannotHave(f"apt-get {arguments[0]}: {_without_hosts(' / '.join(wrong[-1:]))}")

    @property
    def packages(self) -> list[Path]:
        return sorted((self._folder / "cache" / "archives").glob("*.deb"))


def _archive() -> str:
    """Where this machine has its Debian from; CannotHave where it is none."""
    if shutil.which("apt-get") is None or not _KEYS.exists() or os.geteuid() != 0:
        raise CannotHave("it is not installed, and this is no Debian whose root we are")
    files = [path for one in _LISTS for path in ([one] if one.is_file() else one.glob("*"))]
    for path in files:
        found = re.search(r"^(?:URIs:|deb\s[^#\n]*?)\s*(\S+/debian/?)\s", path.read_text(), re.M)
        if found:
            return found[1]
    raise CannotHave("no server of Debian is known here")


def _without_hosts(text: str) -> str:
    return re.sub(r"(\w+)://[^/\s]+", r"\1://...", text)


def _release(version: str) -> str:
    if version not in RELEASES:
        raise CannotHave("it is not installed, and no Debian is known that has it")
    return RELEASES[version]


def unpacked(version: str, home: Path) -> Path:
    """A Python from packages, under `home`, which keeps it."""
    program = home / "root" / "usr" / "bin" / f"python{version}"
    wanted = (f"python{version}", f"python{version}-venv", "libstdc++6")
    if not (home / "made").exists():
        _unpack(_release(version), wanted, home, [program])
        shared = "usr/share/python-wheels"  # of its own pip, not of this machine's
        for kept in (home / "root" / "usr" / "lib" / f"python{version}").glob("_sysconfig*"):
            if not kept.is_symlink():
                text = kept.read_text().replace(f"/{shared}", str(home / "root" / shared))
                kept.write_text(text)
        run(program, "-c", "import ctypes, sqlite3, ssl, venv")
        (home / "made").touch()
    return program


def server(name: str) -> Path:
    """The unpacked tree of one of SERVERS, where its programs run from; CannotHave."""
    package, home = SERVERS[name], HOME / name
    root = home / "root"
    if (home / "made").exists():
        return root
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "made").exists():
            return root
        print(
            f"{name}: unpacking {', '.join(package.names)} and the libraries of Debian "
            f"{package.release} into {root.relative_to(HOME.parent)}; nothing is installed",
            file=sys.stderr,
            flush=True,
        )
        _unpack(package.release, package.names, home, [root / one for one in package.programs])
        (home / "made").touch()
    return root


def _unpack(release: str, wanted: Sequence[str], home: Path, programs: Sequence[Path]) -> None:
    """Packages with all that they need, under `home`/root; the programs, or those in these folders,
    load the C library and the others that stand there."""
    root = home / "root"
    apt = Apt(home, "deb", release)
    apt.do("install", "-y", "--download-only", "--no-install-recommends", *wanted)
    for package in apt.packages:
        run("dpkg", "-x", package, root)
    if shutil.which("patchelf") is None:
        install("patchelf")
    libraries = next((root / "usr" / "lib").glob("*/libc.so.6")).parent
    loader = next(libraries.glob("ld-linux*"))
    paths = [libraries, *(one for one in libraries.glob("*/private") if one.is_dir())]
    rpath = ":".join(str(path) for path in paths)
    for program in _elf(programs):
        run("patchelf", "--set-interpreter", loader, program)
        run("patchelf", "--force-rpath", "--set-rpath", rpath, program)


def _elf(programs: Sequence[Path]) -> Iterator[Path]:
    for path in programs:
        for one in sorted(path.iterdir()) if path.is_dir() else [path]:
            if one.is_file() and not one.is_symlink():
                with one.open("rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield one


def built(version: str, home: Path) -> Path:
    """The free-threaded one, from the sources, under `home`: some five minutes, once."""
    program = home / "root" / "bin" / f"python{version}"
    if (home / "made").exists():
        return program
    name = f"python{version.removesuffix('t')}"
    Apt(home, "deb-src", _release(version)).do("source", "--download-only", name)
    (archive,) = home.glob("*.orig.tar.xz")
    run("tar", "-C", home, "-xf", archive)
    (source,) = home.glob("Python-*/")
    steps = (
        f"./configure -q --disable-gil --prefix={home / 'root'} && make -s -j2 && make -s install"
    )
    done = subprocess.run(
        ["sh", "-c", steps], cwd=source, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotHave(f"it cannot be built: {' / '.join(done.stderr.splitlines()[-2:])}")
    run(program, "-c", "import ctypes, sqlite3, ssl, venv")
    shutil.rmtree(source)
    (home / "made").touch()
    return program


def main(versions: Sequence[str]) -> int:
    """Have these Pythons where noxfile.py looks for them: `python -m tests.debian 3.14 3.13t`."""
    for version in versions:
        if shutil.which(f"python{version}"):
            continue
        have = built if version.endswith("t") else unpacked
        try:
            print(f"{version}: {have(version, HOME / f'python{version}')}", flush=True)
        except CannotHave as reason:
            print(f"{version}: NOT THERE: {reason}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
