"""Gives the stand-ins to the processes that a test starts: this folder is in their PYTHONPATH."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Installing(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        real = module.connect

        def first(*args: Any, **options: Any) -> Any:
            module.connect = real
            sys.path.append(str(Path(__file__).parents[3]))
            from proof.oracle import standins

            standins.install()
            return module.connect(*args, **options)

        module.connect = first


class _Watching(importlib.abc.MetaPathFinder):
    """Until the driver is imported: most processes do not use it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "oracledb":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Installing(spec.loader)
        return spec


sys.meta_path.insert(0, _Watching())
