"""Pythons that this Debian does not have: from the packages of a later one, or from its sources.

Nothing is installed: a package is unpacked into a folder, with its C library and all others that it
needs, and its program is told to load those. The servers of this machine's Debian are asked, with
its keys.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.servers import CannotHave, install, run

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LISTS = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
RELEASES = {"3.14": "sid", "3.13t": "trixie"}
"""Version -> the Debian that it is taken from."""


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
    """From packages, under `home`, which keeps it."""
    root = home / "root"
    program = root / "usr" / "bin" / f"python{version}"
    if (home / "made").exists():
        return program
    apt = Apt(home, "deb", _release(version))
    wanted = (f"python{version}", f"python{version}-venv", "libstdc++6")
    apt.do("install", "-y", "--download-only", "--no-install-recommends", *wanted)
    for package in apt.packages:
        run("dpkg", "-x", package, root)
    if shutil.which("patchelf") is None:
        install("patchelf")
    libraries = next((root / "usr" / "lib").glob("*/libc.so.6")).parent
    loader = next(libraries.glob("ld-linux*"))
    run("patchelf", "--set-interpreter", loader, program)
    run("patchelf", "--force-rpath", "--set-rpath", libraries, program)
    run(program, "-c", "import ctypes, sqlite3, ssl, venv")
    (home / "made").touch()
    return program


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
