"""Find studies and runs in a folder, and refuse what the page could not show."""

import json
import math
import re
from pathlib import Path

import msgspec

from hylorada.errors import SpecError
from hylorada.files import read_record
from hylorada.records import studies as record
from hylorada.records.runs import RunCost, RunResult
from hylorada.records.studies import Logged, Study
from hylorada.report import wording

STUDY, RESULT, METRICS = "study.json", "result.json", "metrics.jsonl"
# Characters that XML forbids, and those that reorder the text around them.
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class LoggedLine(msgspec.Struct, frozen=True):
    """What the page shows of a line of `metrics.jsonl`."""

    step: float
    loss: float | None = None
    grad_norm: float | None = None


def load(place: Path) -> list[Study]:
    """Return every study in a folder or file; a folder of one training run gives one small study.

    Raises:
        SpecError: There is nothing there, or not in the form that this version reads.
    """
    if not place.exists():
        raise SpecError(f"a report is made of a folder that exists; there is no {place}")
    if place.name == RESULT and place.is_file():
        return [load_run(place.parent)]
    files = [place] if place.is_file() else sorted(place.rglob(STUDY))
    within = {one: one.relative_to(place).parts for one in files}
    # Half-written folders start with a dot.
    if files := [one for one in files if not any(p.startswith(".") for p in within[one])]:
        return [checked(read_record(one, Study, "run the study again"), str(one)) for one in files]
    if (place / RESULT).is_file():
        return [load_run(place)]
    raise SpecError(
        f"a report needs a folder with a {STUDY} or a run's {RESULT}; {place} holds neither; "
        "make one with hylorada compare or hylorada train"
    )


def checked(study: Study, where: str = "the study") -> Study:
    """Return a study fit for a page: text without control characters, numbers finite or None."""
    names = [arm.name for arm in study.arms]
    if len(set(names)) < len(names):
        raise SpecError(f"every arm in {where} must have a name of its own; got {names!r:.200}")
    try:
        return msgspec.convert(_clean(msgspec.to_builtins(study)), Study)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where} must hold a Study as this version writes it; {error}") from error


def load_run(folder: Path) -> Study:
    """Return a training run as a study of one arm, from its result and what it logged."""
    try:  # json reads the NaN of a run that diverged, msgspec does not
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        result = msgspec.convert(found, RunResult)
    except (ValueError, RecursionError) as error:
        rule = f"{folder / RESULT} must hold a RunResult as this version writes it; {error}"
        raise SpecError(f"{rule}; name the folder of a training run") from error
    lines = _logged(folder / METRICS)
    losses: list[Logged] = [(one.step, one.loss) for one in lines if one.loss is not None]
    norms: list[Logged] = [(one.step, one.grad_norm) for one in lines if one.grad_norm is not None]
    name, perplexity = folder.resolve().name, result.valid_perplexity
    arm = record.Arm(
        name=name,
        trainable_parameters=result.trainable_parameters,
        perplexity=record.SeedMean(value=perplexity, by_seed=[perplexity]),
        cost=RunCost(train_seconds=result.seconds),
        training_curve={str(result.seed): losses} if losses else None,
    )
    gradients = record.NamedCurve(name="all parameters", points=norms)
    audit = record.Check(name="audit of training", passed=True, detail=result.audit)
    study = Study(
        study="run",
        title=f"Training run {name}",
        command=f"hylorada train --config {folder / 'config.yaml'}",
        sentences=[_run_sentence(result)],
        arms=[arm],
        checks=[audit] if result.audit else [],
        setting=record.Setting(
            seed=result.seed, steps=result.steps, valid_tokens=result.valid_tokens
        ),
        provenance=record.Provenance(
            id=result.id, config=result.config, data=result.data, code=result.code
        ),
        figures_data=record.FiguresData(gradient_norms=[gradients]),
    )
    return checked(study, str(folder))


def _run_sentence(result: RunResult) -> str:
    size = f"{result.trainable_parameters:,} trainable parameters"
    steps = wording.count(result.steps, "step")
    perplexity = result.valid_perplexity
    if perplexity is None and not result.valid_tokens:
        return f"{size}, {steps}; nothing was validated."
    told = wording.number(math.nan if perplexity is None else perplexity)  # None: it diverged
    tokens = wording.count(result.valid_tokens, "validation token")
    return (
        f"Perplexity {told} on {tokens} after {steps} with {size}; one seed, so without a spread."
    )


def _logged(file: Path) -> list[LoggedLine]:
    """Return what was logged; a run that was resumed may have logged a line twice."""
    if not file.is_file():
        return []
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        steps = [row for row in rows if "step" in row]
        return list(dict.fromkeys(msgspec.convert(steps, list[LoggedLine])))
    except (TypeError, ValueError) as error:
        raise SpecError(f"{file} must hold lines of JSON; it does not ({error})") from error


def _clean(value: object) -> object:
    match value:
        case str():
            return UNSAFE.sub("\ufffd", value)
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_clean(item) for item in value]
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
    return value
