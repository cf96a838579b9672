"""Import modules as soon as somebody imports another package.

PEFT has no plugins: a method joins it only by being imported. Importing PEFT from here would cost
every `hylorada --help` several seconds, so the methods wait until the user imports PEFT.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_import(package: str, modules: Sequence[str]) -> None:
    """Import modules once a package has been imported; at once if it has been already."""
    if package in sys.modules:
        for name in modules:
            import_module(name)
    else:
        sys.meta_path.insert(0, _Watch(package, modules))


class _Watch(MetaPathFinder):
    """Finds one package as Python would, and adds imports to the end of its own import."""

    def __init__(self, package: str, modules: Sequence[str]) -> None:
        self.package, self.modules = package, modules

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)  # so that Python's own finders are asked
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_follow(module: ModuleType) -> None:
                run(module)
                sys.meta_path.remove(self)
                for name in self.modules:
                    import_module(name)

            # Set past the loader's class: this loader is for this one package.
            vars(spec.loader)["exec_module"] = run_and_follow
        return spec
