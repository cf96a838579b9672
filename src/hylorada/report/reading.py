"""Find studies and runs in a folder, and refuse what the page could not show."""

import json
import re
from pathlib import Path
from typing import Any

from hylorada.errors import SpecError
from hylorada.report import form, wording

Study = dict[str, Any]
SCHEMA = 1
STUDY, RESULT, METRICS = "study.json", "result.json", "metrics.jsonl"
# What a study may leave out; the page then leaves out what shows it.
TEXTS = ("study", "title", "command", "frozen")
PARTS: dict[str, type[list[Any]] | type[dict[str, Any]]] = {
    **dict.fromkeys(("sentences", "comparisons", "checks", "statements"), list),
    **dict.fromkeys(("plan", "setting", "provenance", "figures_data"), dict),
}
# Characters that XML forbids, and those that reorder the text around them.
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def load(place: Path) -> list[Study]:
    """Return every study in a folder or file; a folder of one training run gives one small study.

    Raises:
        SpecError: There is nothing there, or not in the form that this version reads.
    """
    if not place.exists():
        raise SpecError(f"a report is made of a folder that exists; there is no {place}")
    if place.name == RESULT and place.is_file():
        return [load_run(place.parent)]
    files = [place] if place.is_file() else _studies(place)
    if files:
        return [checked(_parsed(file), str(file)) for file in files]
    if (place / RESULT).is_file():
        return [load_run(place)]
    raise SpecError(
        f"a report needs a folder with a {STUDY} or a run's {RESULT}; {place} holds neither; "
        "make one with hylorada compare or hylorada train"
    )


def checked(study: Any, where: str = "the study") -> Study:
    """Return a study whose parts have the form that the page reads, its text without controls."""
    found = study.get("schema") if isinstance(study, dict) else None
    if found != SCHEMA:
        raise SpecError(f"{where} must have schema {SCHEMA}; got {found!r}; run the study again")
    form.STUDY(study, where)
    names = [arm["name"] for arm in study["arms"]]
    if len(set(names)) < len(names):
        raise SpecError(f"every arm in {where} must have a name of its own; got {names!r:.200}")
    known: Study = dict.fromkeys(TEXTS) | _clean(study)
    for key, kind in PARTS.items():
        known[key] = known.get(key) or kind()
    known["arms"] = [dict.fromkeys(form.ARM) | arm for arm in known["arms"]]
    return known


def load_run(folder: Path) -> Study:
    """Return a training run as a study of one arm, from its result and what it logged."""
    result = _parsed(folder / RESULT)
    if not isinstance(result, dict) or "trainable_parameters" not in result:
        raise SpecError(f"{folder / RESULT} must be the result of a training run; it is not")
    if result.get("schema") != SCHEMA:
        raise SpecError(f"{folder / RESULT} must have schema {SCHEMA}; got {result.get('schema')}")
    logged = _logged(folder / METRICS)
    seed = str(result.get("seed"))
    curve = [[row["step"], row["loss"]] for row in logged if "loss" in row]
    norms = [[row["step"], row["grad_norm"]] for row in logged if "grad_norm" in row]
    perplexity = result.get("valid_perplexity")
    arm = {
        "name": folder.resolve().name,
        "role": "reference",
        "trainable_parameters": result["trainable_parameters"],
        "perplexity": {"by_seed": [perplexity], "value": perplexity, "interval": None},
        "cost": {"train_seconds": result.get("seconds")},
        "training_curve": {seed: curve} if curve else None,
    }
    audit = result.get("audit")
    study = {
        "schema": SCHEMA,
        "study": "run",
        "title": f"Training run {folder.resolve().name}",
        "command": f"hylorada train --config {folder / 'config.yaml'}",
        "sentences": [_run_sentence(result)],
        "arms": [arm],
        "checks": [{"name": "audit of training", "passed": True, "detail": audit}] if audit else [],
        "setting": {key: result.get(key) for key in ("seed", "steps", "valid_tokens")},
        "provenance": {key: result.get(key) for key in ("id", "config", "data", "code")},
        "figures_data": {"gradient_norms": [{"name": "all parameters", "points": norms}]},
    }
    return checked(study, str(folder))


def _run_sentence(result: dict[str, Any]) -> str:
    size = f"{result['trainable_parameters']:,} trainable parameters"
    steps = wording.count(int(result.get("steps") or 0), "step")
    if result.get("valid_perplexity") is None:
        return f"{size}, {steps}; nothing was validated."
    tokens = wording.count(int(result.get("valid_tokens") or 0), "validation token")
    return (
        f"Perplexity {wording.number(result['valid_perplexity'])} on {tokens} "
        f"after {steps} with {size}; one seed, so without a spread."
    )


def _studies(folder: Path) -> list[Path]:
    """Return the study files in a folder and below; half-written folders start with a dot."""
    return sorted(
        path
        for path in folder.rglob(STUDY)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _parsed(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file} must hold JSON; it does not ({error})") from error


def _logged(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise SpecError(f"{file} must hold lines of JSON; it does not ({error})") from error
    # A run that was resumed may have logged a step twice.
    unique = {json.dumps(row, sort_keys=True): row for row in rows}
    return [row for row in unique.values() if isinstance(row, dict) and "step" in row]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return UNSAFE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
