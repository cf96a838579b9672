"""Modules that follow a package: imported as soon as it has been, by whomever."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(package: str, followers: Sequence[str]) -> None:
    """Import modules once a package has been imported; at once if it has been already."""
    if package in sys.modules:
        _import_all(followers)
    else:
        sys.meta_path.insert(0, _Watch(package, followers))


class _Watch(MetaPathFinder):
    """Finds a package as the other finders do, to know when it has been imported."""

    def __init__(self, package: str, followers: Sequence[str]) -> None:
        self.package = package
        self.followers = followers

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)  # in place of this one, the others are asked
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Watched(spec.loader, self)
        return spec


class _Watched(Loader):
    """Loads a package with its own loader, and imports the followers when it has run."""

    def __init__(self, loader: Loader, watch: _Watch) -> None:
        self.loader = loader
        self.watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self.watch)
        _import_all(self.watch.followers)


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        import_module(name)
