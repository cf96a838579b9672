"""Make the page: one HTML file that needs nothing else, from what studies left behind."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import chain, count
from pathlib import Path

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hylorada.errors import SpecError
from hylorada.files import write_atomically
from hylorada.names import require_one_of
from hylorada.records import Record
from hylorada.records.studies import RegisteredPlan, Study
from hylorada.report import canvas, wording
from hylorada.report import figures as contents
from hylorada.report.effects import thresholds
from hylorada.report.reading import checked, load

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
Facts = list[tuple[str, str]]  # names and values as a reader meets them


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
    for form in figures.split():
        require_one_of("a format of figures", form, canvas.FORMATS)
    for form in tables.split():
        require_one_of("a format of tables", form, contents.TABLE_FORMATS)
    if out.is_dir():
        raise SpecError(f"a page is a file; {out} is a folder; name a file in it")
    studies = load(study)
    page = render(*studies)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    for name, one in zip(_stems(studies), studies, strict=True):
        stem = f"{name}-" if len(studies) > 1 else ""
        if figures:
            contents.save_figures(one, out.parent / "figures", figures.split(), stem)
        if tables:
            contents.save_tables(one, out.parent / "tables", tables.split(), stem)
    return out


def render(*studies: Study) -> str:
    """Return the page of one study, or of several with a part for each."""
    if not studies:
        raise SpecError("a page needs at least one study; got none")
    known = [checked(study) for study in studies]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["facts"] = facts
    template = (files("hylorada.report") / "page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        parts=[_part(study, stem) for study, stem in zip(known, _stems(known), strict=True)],
        style=Markup(canvas.STYLE_SHEET),
        version=version("hylorada"),
        wording=wording,
    )


def facts(values: Record | Mapping[str, object], without: Sequence[str] = ()) -> Facts:
    """Return names and values as a reader meets them; what is not known is left out."""
    known = msgspec.structs.asdict(values) if isinstance(values, Record) else values
    return [
        (NAMES.get(name, name.replace("_", " ")), _fact(value))
        for name, value in known.items()
        if name not in without and value not in (None, "", [], {})
    ]


def _fact(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if value >= 10_000 else str(value)
        case float():
            return f"{value:,.6g}".replace("-", "\u2212")
        case Record() | Mapping():
            between = "; " if isinstance(value, Record) else ", "
            return between.join(f"{name} {text}" for name, text in facts(value))
        case list():
            return ", ".join(map(_fact, value))
    text = str(value)
    return text.replace("T", " ")[:16] + " UTC" if ISO_TIME.fullmatch(text) else text


def _part(study: Study, stem: str) -> dict[str, object]:
    """Return what the template shows of one study; its ids begin with the stem."""
    sections = [
        (one, contents.drawing(one, study, f"{stem}-{one.name}"), contents.table_of(one, study))
        for one in contents.in_order()
    ]
    plan: dict[str, str] = {}
    if study.plan != RegisteredPlan():
        # Thresholds in per cent, as the page gives gains.
        gains = [f"{word} from {value:g}\u00a0%" for word, value in thresholds(study).items()]
        plan = dict(facts(study.plan, ("hash", "changes"))) | {"thresholds": ", ".join(gains)}
    return {
        "study": study,
        "stem": stem,
        "title": study.title or study.study or "Study",
        "sections": [section for section in sections if any(section[1:])],
        "plan": list(plan.items()),
        "provenance": facts(study.provenance),
    }


def _stems(studies: Sequence[Study]) -> list[str]:
    """Return a name for each study that is safe in an id and in a file's name, no two equal."""
    stems: list[str] = []
    for study in studies:
        safe = re.sub(r"[^a-z0-9]+", "-", (study.study or "").lower()).strip("-")[:40] or "study"
        numbered = (f"{safe}-{number}" for number in count(2))
        stems.append(next(stem for stem in chain([safe], numbered) if stem not in stems))
    return stems
