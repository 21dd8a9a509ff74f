"""Stands in for SGLang's CUDA kernels on machines without CUDA: every name imports, and raises when it is called.

SGLang imports the package everywhere; on a CPU its Llama falls back to torch and calls none of it.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self._name} is a CUDA kernel, and this machine has none")

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name)
        module.__path__ = []  # It may have modules of its own.
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(f"{__name__}.{name}")
