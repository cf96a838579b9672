"""Make the page: one HTML file that needs nothing else, from what studies left behind."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hylorada.errors import SpecError
from hylorada.files import write_atomically
from hylorada.report import canvas, exports, plots, wording
from hylorada.report.columns import Table
from hylorada.report.effects import thresholds
from hylorada.report.reading import Study, checked, load
from hylorada.report.tables import tables_of

NAMES = {
    "length": "context, tokens",
    "num_train": "training sequences",
    "num_val": "validation sequences",
    "valid_tokens": "validation tokens",
    "valid_share": "share of valid tokens",
    "data_fingerprint": "fingerprint of the data",
    "registered": "registered at",
    "reused": "runs reused",
    "failed": "runs failed",
    "repeated": "attempts repeated",
}
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)")
# Tables that stand alone, before the figures and behind them.
FIRST = {"statements": "Statements", "results": "Results", "allocation": "Allocation"}
LAST = {"cost": "Cost", "checks": "Self-checks"}


class Section(NamedTuple):
    """A heading with a figure, a table, or a figure and the numbers behind it."""

    key: str
    heading: str
    drawing: plots.Drawing | None
    table: Table | None


def write(study: Path, out: Path, *, figures: str = "", tables: str = "") -> Path:
    """Write the page of a study, of all studies in a folder, or of a run, and return its path.

    Args:
        study: A folder with `study.json` in it or below, such a file, or a run's folder.
        out: The page. Figures and tables lie beside it, in folders of these names.
        figures: Formats of the figures to write too, of `svg png pdf`.
        tables: Formats of the tables to write too, of `csv tex`.

    Raises:
        SpecError: There is no study, it cannot be read, a format is unknown, or `out` is a folder.
    """
    _require_formats("figures", figures.split(), canvas.FORMATS)
    _require_formats("tables", tables.split(), tuple(exports.FORMATS))
    if out.is_dir():
        raise SpecError(f"a page is a file; {out} is a folder; name a file in it")
    studies = load(study)
    page = render(*studies)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    for name, one in zip(_stems(studies), studies, strict=True):
        stem = f"{name}-" if len(studies) > 1 else ""
        if figures:
            plots.save(one, _folder(out, "figures"), figures.split(), stem)
        if tables:
            exports.save(tables_of(one), _folder(out, "tables"), tables.split(), stem)
    return out


def render(*studies: Study) -> str:
    """Return the page of one study, or of several with a part for each."""
    if not studies:
        raise SpecError("a page needs at least one study; got none")
    known = [checked(study) for study in studies]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        verdict=wording.verdict, count=wording.count, facts=facts, version=version("hylorada")
    )
    room = files("hylorada.report")
    template = environment.from_string((room / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        parts=[_part(study, stem) for study, stem in zip(known, _stems(known), strict=True)],
        style=Markup((room / "page.css").read_text(encoding="utf-8")),
    )


def facts(values: Mapping[str, Any] | None, without: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return names and values as a reader meets them; what is not known is left out."""
    return [
        (NAMES.get(name, name.replace("_", " ")), _fact(value))
        for name, value in (values or {}).items()
        if name not in without and value not in (None, "", [], {})
    ]


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.6g}".replace("-", "\u2212")
    if isinstance(value, Mapping):
        lists = any(isinstance(item, list) for item in value.values())
        return ("; " if lists else ", ").join(f"{name} {text}" for name, text in facts(value))
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    if ISO_TIME.fullmatch(str(value)):
        return str(value).replace("T", " ")[:16] + " UTC"
    return str(value)


def _part(study: Study, stem: str) -> dict[str, Any]:
    """Return what the template shows of one study."""
    return {
        "study": study,
        "stem": stem,
        "title": study["title"] or study["study"] or "Study",
        "sections": _sections(study, stem),
        "judged": [(arm, _rest(arm)) for arm in _judged(study)],
        "statements": [_statement(one) for one in study["statements"]],
        "plan": _plan(study),
        "failed": [check["name"] for check in study["checks"] if not check.get("passed")],
    }


def _judged(study: Study) -> list[dict[str, Any]]:
    """Return the arms that the verdict speaks of: the candidates, or all where there are none."""
    told = [arm for arm in study["arms"] if arm["sentence"]]
    return [arm for arm in told if arm["role"] == "candidate"] or told


def _rest(arm: dict[str, Any]) -> str:
    """Return an arm's sentence without the arm's name, which stands before it."""
    return str(arm["sentence"]).removeprefix(arm["name"]).lstrip(": ")


def _statement(one: dict[str, Any]) -> dict[str, str]:
    """Return the words of a statement, with its estimate, interval and unit as one."""
    value = one.get("estimate")
    ends = wording.interval(one.get("interval"), 3)
    estimate = "" if value is None else f"{wording.signed(value, 3)} {ends} {one.get('unit') or ''}"
    words = {
        key: str(one.get(key) or "") for key in ("name", "claim", "label", "sentence", "detail")
    }
    return words | {"estimate": " ".join(estimate.split())}


def _plan(study: Study) -> dict[str, Any]:
    """Return the registered plan with its thresholds in per cent, as the page gives gains."""
    plan = dict(study["plan"])
    if plan.get("thresholds"):
        known = thresholds(study).items()
        plan["thresholds"] = ", ".join(f"{word} from {value:g}\u00a0%" for word, value in known)
    return plan


def _sections(study: Study, stem: str) -> list[Section]:
    found = tables_of(study)
    drawn = [
        Section(
            plot.key,
            plot.heading,
            plots.drawing(plot, study, f"{stem}-{plot.key}"),
            found.get(plot.key),
        )
        for plot in plots.FIGURES
    ]
    first, last = (
        [Section(key, heading, None, found[key]) for key, heading in alone.items() if key in found]
        for alone in (FIRST, LAST)
    )
    return [*first, *(one for one in drawn if one.drawing or one.table), *last]


def _stems(studies: Sequence[Study]) -> list[str]:
    """Return a name for each study that is safe in an id and in a file's name, no two equal."""
    names = [
        re.sub(r"[^a-z0-9]+", "-", str(study["study"] or "").lower()).strip("-")[:40] or "study"
        for study in studies
    ]
    stems: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in count(2))
        stems.append(next(stem for stem in chain([name], numbered) if stem not in stems))
    return stems


def _folder(out: Path, name: str) -> Path:
    folder = out.parent / name
    folder.mkdir(exist_ok=True)
    return folder


def _require_formats(what: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for form in wanted:
        if form not in known:
            raise SpecError(f"{what} come as {', '.join(known)}; got {form!r}")
