"""What decides a number decides its name: hashes of settings, texts and source."""

import ast
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent


def short_hash(text: str) -> str:
    """Return the first 64 bits of a text's SHA-256, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_hash(settings: object) -> str:
    """Return a short hash of settings in plain types, whatever their order."""
    return short_hash(json.dumps(settings, default=str, sort_keys=True))


@cache  # a file that is edited later is not what this process runs
def source_sha256(*modules: str) -> str:
    """Return a hash of these modules and of everything of this package that they import.

    It tells of edits that a version does not. The closure is read from the import statements, and
    from names of modules in strings, by which registries find theirs. A module from outside the
    package, such as a plugin, counts as the one file it is.
    """
    digest = hashlib.sha256()
    for name, path in sorted(import_closure(modules).items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def import_closure(modules: Sequence[str]) -> dict[str, Path]:
    """Return the files of modules and of all of this package that they import, by name."""
    found: dict[str, Path] = {}
    outside = [name for name in modules if not name.startswith("hylorada")]
    waiting = [name for name in modules if name not in outside]
    while waiting:
        name = waiting.pop()
        path = _module_file(name)
        if name in found or path is None:
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                waiting.append(node.value)
    for name in outside:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found[name] = Path(spec.origin)
    return found


def _module_file(name: str) -> Path | None:
    package, _, rest = name.partition(".")
    if package != PACKAGE.name or not all(part.isidentifier() for part in rest.split(".")):
        return None
    path = PACKAGE.joinpath(*rest.split("."))
    options = (path.with_suffix(".py"), path / "__init__.py")
    return next((option for option in options if option.is_file()), None)
