"""Settings: frozen dataclasses without PyTorch, from which options, help and YAML derive.

Each setting has its type, default, help and rule in one place, the field itself.
"""

from collections.abc import Collection
from dataclasses import field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin

from hylorada.errors import SpecError
from hylorada.names import real_number, require_one_of

Value = TypeVar("Value")


def setting(
    default: Value,
    help: str,
    *,
    least: int | None = None,
    between: tuple[float, float] | None = None,
    among: Collection[str] = (),
    rule: str | None = None,
) -> Value:
    """Return a dataclass field with its default, the line that explains it, and its rule.

    Args:
        default: The value if nobody says anything.
        help: What it decides, in one or two sentences.
        least: The smallest value it can have.
        between: The smallest and the largest value it can have.
        among: The values it can have.
        rule: The range of a real number, one of `names.RANGES`.
    """
    rules = {"help": help, "least": least, "between": between, "among": among, "rule": rule}
    found: Value = field(default=default, metadata=rules)
    return found


def check(spec: Any, declared: Any = None) -> None:
    """Raise `SpecError` for the first setting that breaks its rule; None breaks none.

    Where PEFT adds fields of its own, `declared` is the class whose settings are checked.
    """
    for one in fields(declared or spec):
        value, rules = getattr(spec, one.name), one.metadata
        if value is None:
            continue
        if among := get_args(one.type) if get_origin(one.type) is Literal else rules.get("among"):
            require_one_of(one.name, value, among)
        if rules.get("rule") is not None:
            real_number(one.name, value, rules["rule"])
        if (least := rules.get("least")) is not None and value < least:
            bound = "not be negative" if least == 0 else f"be at least {least}"
            raise SpecError(f"{one.name} must {bound}; got {value}")
        if (between := rules.get("between")) and not between[0] <= value <= between[1]:
            rule = f"must lie between {between[0]} and {between[1]}"
            raise SpecError(f"{one.name} {rule}; got {value}")
