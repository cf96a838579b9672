"""Things looked up by name: each registers itself, inside this package or from outside.

A registry knows which modules of this package register entries, and the entry point group in which
other packages name theirs. Both are imported at the first look-up and not before, so a registry
costs nothing until somebody asks it something.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar, runtime_checkable

from hylorada.errors import SpecError
from hylorada.names import known


@runtime_checkable
class Named(Protocol):
    """What can be registered."""

    @property
    def name(self) -> str:
        """Return what users type."""
        ...

    @property
    def words(self) -> str:
        """Return one line that says what it is, for tables and lists."""
        ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[str, Entry]):
    """Entries by name, in the order in which they registered.

    Args:
        what: What an entry is called in messages, such as "metric".
        group: Entry point group of other packages, such as "hylorada.metrics".
        modules: Modules of this package that register entries.
    """

    def __init__(self, what: str, group: str, *modules: str) -> None:
        self.what, self.group, self.modules = what, group, modules
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, str] = {}
        self._loaded = False

    def add(self, entry: Entry) -> Entry:
        """Register an entry and return it; a name can be taken once."""
        if self._entries.setdefault(entry.name, entry) is not entry:
            raise SpecError(
                f"every {self.what} needs a name of its own; {entry.name!r} is taken; rename one"
            )
        return entry

    def origin(self, name: str) -> str | None:
        """Return the package that brought an entry; None for this one."""
        self._load()
        return self._origins.get(name)

    def __getitem__(self, name: str) -> Entry:
        self._load()
        return self._entries[known(name, self._entries, self.what)]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # a module that asks while it registers sees what is there so far
        for module in self.modules:
            import_module(module)
        for point in entry_points(group=self.group):
            before = set(self._entries)
            package = _load_plugin(point)
            self._origins |= dict.fromkeys(self._entries.keys() - before, package)


def _load_plugin(point: EntryPoint) -> str:
    """Import the module that an entry point of another package names, and return the package."""
    package = point.dist.name if point.dist is not None else point.module
    try:
        point.load()
    except Exception as error:  # whatever a stranger's module raises, the user needs one line
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(
            f"plugin {point.name!r} of package {package!r} must be importable; it is not "
            f"({reason}); repair or uninstall it"
        ) from error
    return package
