"""A plan is registered before it runs. It may change afterwards, but not silently.

The file of plans keeps every one that was registered, and results name the changes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from hylorada.experiments.studies.plan import Plan
from hylorada.files import write_atomically

PLAN = "plan.json"
SCHEMA = 1
LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """When a plan was registered, and what has changed in it since the first one."""

    hash: str
    registered: str
    changes: tuple[str, ...]


def register(plan: Plan, folder: Path) -> Registration:
    """Write the plan into the study's folder; an earlier, different one is kept beside it."""
    path = folder / PLAN
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"hash": plan.hash(), "registered": now, "plan": plan.as_dict()}
    history: list[dict[str, Any]] = []
    if path.is_file():
        stored = json.loads(path.read_text())
        if stored["current"]["hash"] == entry["hash"]:
            return _registration(stored["current"], stored["history"])
        history = [*stored["history"], stored["current"]]
    text = json.dumps({"schema": SCHEMA, "current": entry, "history": history}, indent=1)
    write_atomically(path, text + "\n")
    return _registration(entry, history)


def _registration(current: dict[str, Any], history: list[dict[str, Any]]) -> Registration:
    entries = [*history, current]
    changes = [
        f"{later['registered']}: plan {earlier['hash']} became {later['hash']}: "
        + "; ".join(_differences(earlier["plan"], later["plan"]))
        for earlier, later in pairwise(entries)
    ]
    return Registration(
        hash=current["hash"], registered=current["registered"], changes=tuple(changes)
    )


def _differences(earlier: dict[str, Any], later: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between two plans, arms by their names."""
    old, new = _by_name(earlier), _by_name(later)
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name} was {'removed' if name in old else 'added'}"
    for name in sorted(old.keys() & new.keys()):
        before, after = dict(_leaves(old[name], (name,))), dict(_leaves(new[name], (name,)))
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield f"{'.'.join(key)} from {_short(before.get(key))} to {_short(after.get(key))}"


def _by_name(plan: dict[str, Any]) -> dict[str, Any]:
    parts = {name: value for name, value in plan.items() if name != "arms"}
    return parts | {f"arm {arm['name']}": arm for arm in plan["arms"]}


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"
