"""The form of a study file: what each part must be, and the place of the first that is not."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from hylorada.errors import SpecError

Check = Callable[[Any, str], None]


def number(value: Any, where: str) -> None:
    """Refuse what is not a number; one that is not finite is none the less one."""
    _require(isinstance(value, int | float) and not isinstance(value, bool), value, where, "number")


def finite_number(value: Any, where: str) -> None:
    """Refuse what cannot be a place on an axis."""
    number(value, where)
    _require(math.isfinite(value), value, where, "finite number")


def text(value: Any, where: str) -> None:
    """Refuse what is not text."""
    _require(isinstance(value, str), value, where, "text")


def maybe(check: Check) -> Check:
    """Return a check that lets None pass."""

    def checked(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return checked


def items(check: Check, *, length: int | None = None, least: int = 0) -> Check:
    """Return a check of a list, of this length or at least so long."""
    size = f" of {length}" if length is not None else f" of at least {least}" if least else ""

    def checked(value: Any, where: str) -> None:
        fits = isinstance(value, list) and len(value) >= least and length in (None, len(value))
        _require(fits, value, where, f"list{size}")
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]")

    return checked


def entries(check: Check) -> Check:
    """Return a check of every value of an object, whatever its keys."""

    def checked(value: Any, where: str) -> None:
        _require(isinstance(value, dict), value, where, "object")
        for name, item in value.items():
            check(item, f"{where}.{name}")

    return checked


def fields(needed: Mapping[str, Check], known: Mapping[str, Check] | None = None) -> Check:
    """Return a check of an object's needed keys, and of known ones where they are not None."""

    def checked(value: Any, where: str) -> None:
        _require(isinstance(value, dict), value, where, "object")
        for name, check in needed.items():
            if name not in value:
                raise SpecError(f"{where} must have {name!r}; it has {', '.join(value) or 'none'}")
            check(value[name], f"{where}.{name}")
        for name, check in (known or {}).items():
            maybe(check)(value.get(name), f"{where}.{name}")

    return checked


def _require(fits: bool, value: Any, where: str, kind: str) -> None:
    if not fits:
        what = f"an {kind}" if kind == "object" else kind if kind == "text" else f"a {kind}"
        shown = f"{value!r:.60}".replace("\n", " ")
        raise SpecError(f"{where} must be {what}; got {shown}; run the study again")


INTERVAL = items(maybe(number), length=2)
ESTIMATE = fields({"value": maybe(number)}, {"interval": INTERVAL, "clusters": number})
POINT = items(maybe(number), length=2)
PLACED = fields({"x": finite_number, "value": maybe(number)}, {"interval": INTERVAL})
TABLE: dict[str, Check] = {
    "rows": items(text, least=1),
    "columns": items(text, least=1),
    "weights": items(items(maybe(number))),
}
VALUE = fields({}, {"value": number, "interval": INTERVAL, "by_seed": items(maybe(number))})
ALLOCATION = fields(
    {},
    {
        "mode": text,
        "ratio": number,
        "budget": finite_number,
        "file_bytes": number,
        "layers": items(text),
        "gamma": items(items(maybe(number))),
        "gradients": fields({}, dict.fromkeys("AB", items(maybe(number)))),
        **dict.fromkeys(("share_of_b", "bits", "risk", "risk_unquantised", "bound"), VALUE),
    },
)
ARM: dict[str, Check] = {
    "role": text,
    "baseline": text,
    "description": text,
    "trainable_parameters": number,
    "added_parameters": number,
    "perplexity": VALUE,
    "allocation": ALLOCATION,
    "gain": ESTIMATE,
    "label": text,
    "meaning": text,
    "seeds_needed": finite_number,
    "explained_by": items(text),
    "point_scenario": text,
    "sentence": text,
    "params_per_percent": number,
    "cost": entries(maybe(number)),
    "runs": items(fields({"seed": maybe(number)})),
    "training_curve": entries(items(POINT)),
    "position_curve": items(
        fields(
            {"start": finite_number, "end": finite_number, "value": maybe(number)},
            {"interval": INTERVAL},
        )
    ),
    "depth_curve": items(
        fields({"depth": finite_number, "value": maybe(number)}, {"interval": INTERVAL})
    ),
    "boundaries": fields(
        {"learned": items(items(number)), "uniform": items(number)}, {"context": finite_number}
    ),
    "gates": fields(TABLE),
    "tuning": items(fields({"rate": finite_number, "loss": maybe(number)})),
}
FIGURES_DATA = fields(
    {},
    {
        "risk_unit": text,
        "gain_curves": fields(
            {"curves": items(fields({"name": text, "points": items(PLACED)}))},
            {"over": text},
        ),
        "bits_risk": items(
            fields({"name": text}, {"bits": number, "risk": number, "interval": INTERVAL})
        ),
        "layer_gates": items(fields({"name": text} | TABLE)),
        "gradient_norms": items(fields({"name": text, "points": items(POINT)})),
        "bound_parts": items(
            fields({"name": text, "parts": items(fields({"name": text}, {"value": number}))})
        ),
    },
)
STUDY = fields(
    {"arms": items(fields({"name": text}, ARM))},
    {
        "study": text,
        "title": text,
        "command": text,
        "sentences": items(text),
        "frozen": fields({}, {"perplexity": number}),
        "plan": fields(
            {},
            {
                "hash": text,
                "baseline": text,
                "changes": items(text),
                "thresholds": fields(
                    {}, dict.fromkeys(("strong", "moderate", "minimal"), finite_number)
                ),
            },
        ),
        "setting": fields({}, {"test_tokens": finite_number}),
        "provenance": fields({}, {"failed": finite_number}),
        "comparisons": items(
            fields({"arm": text, "against": text}, {"gain": ESTIMATE, "sentence": text})
        ),
        "checks": items(fields({"name": text}, {"detail": text})),
        "statements": items(
            fields(
                {"name": text, "label": text},
                {
                    **dict.fromkeys(("claim", "detail", "sentence", "unit"), text),
                    "estimate": number,
                    "interval": INTERVAL,
                },
            )
        ),
        "figures_data": FIGURES_DATA,
    },
)
