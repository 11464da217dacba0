"""A Python of a version: one that is installed, or one from Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests import debian


def interpreter(version: str, home: Path) -> Path:
    """The program of a version such as "3.14", or "3.13t" for the free-threaded one: in the PATH,
    of pyenv, or unpacked under `home`; CannotHave says why there is none."""
    for path in _known(version):
        if _is(path, version):
            return path
    kept = home / f"python{version}"
    return debian.built(version, kept) if version.endswith("t") else debian.unpacked(version, kept)


def _known(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted(root.glob("versions/*"), reverse=True):
        yield folder / "bin" / f"python{version}"


def _is(path: Path, version: str) -> bool:
    """A shim of pyenv is a program too, also where no such version is chosen."""
    ask = (
        "import sys, sysconfig as c; "
        "print('%d.%d' % sys.version_info[:2] + 't' * bool(c.get_config_var('Py_GIL_DISABLED')))"
    )
    if not path.exists():
        return False
    done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version
