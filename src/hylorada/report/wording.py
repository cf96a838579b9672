"""Numbers as a reader meets them: rounded, with their spread, count and unit."""

import math
from collections.abc import Sequence

from hylorada.records.evaluations import Estimate
from hylorada.records.studies import Mean
from hylorada.verdicts.labels import MEANINGS

WithInterval = Estimate | Mean
NOTHING = "–"
SPACE = "\u00a0"  # keeps a number and its unit on one line


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with fixed digits, thousands apart and a true minus sign."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "not finite"
    text = f"{value:,.{digits}f}".replace("-", "\u2212")
    return text.removeprefix("\u2212") if float(f"{value:.{digits}f}") == 0 else text


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with this many significant digits, in plain or scientific form."""
    if value is None or not math.isfinite(value) or value == 0:
        return number(value, 0)
    if 1e-4 <= abs(value) < 1e6:
        return number(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:.{digits - 1}e}".replace("-", "\u2212")


def signed(value: float | None, digits: int = 2) -> str:
    """Return a number whose sign is always shown, but for zero."""
    text = number(value, digits)
    shown = value is not None and math.isfinite(value) and value > 0
    return f"+{text}" if shown and text.strip("0.") else text


def interval(ends: Sequence[float | None] | None, digits: int = 2) -> str:
    """Return `[low, high]`, or nothing where there is no interval."""
    if ends is None:
        return ""
    low, high = ends
    return f"[{number(low, digits)}, {number(high, digits)}]"


def percent(value: float | None, digits: int = 2) -> str:
    """Return a signed percentage."""
    return NOTHING if value is None else f"{signed(value, digits)}{SPACE}%"


def count(amount: int, thing: str) -> str:
    """Return an amount with its noun in the right number."""
    return f"{amount:,} {thing}{'' if amount == 1 else 's'}"


def duration(seconds: float | None, digits: int = 2) -> str:
    """Return a time in the two largest units that it has; below 10 s with this many digits."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if seconds < 60:
        return f"{significant(seconds, digits + (seconds >= 10))}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {rest:02d}{SPACE}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}{SPACE}h {minutes:02d}{SPACE}min"


def size(amount: float | None, digits: int = 1) -> str:
    """Return a number of bytes in the largest binary unit, with this many digits."""
    if amount is None or not math.isfinite(amount):
        return number(amount)
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, int(math.log2(max(1.0, abs(amount)))) // 10)
    amount, unit = amount / 1024**power, units[power]
    return f"{number(amount, 0 if unit == 'bytes' else digits)}{SPACE}{unit}"


def verdict(label: str | None, meaning: str | None = None) -> str:
    """Return a label as a word: `B moderate`, or nothing for an arm that is not judged."""
    if label is None:
        return ""
    word = meaning or MEANINGS.get(label, "")
    return label if word in ("", label) else f"{label}{SPACE}{word}"


def shortened(text: str, length: int = 24) -> str:
    """Return text that fits beside a figure; the middle goes, since names differ at their ends."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 5
    return f"{text[:head].rstrip()}…{text[head + 1 - length :].lstrip()}"


def stretch(start: int, end: int) -> str:
    """Return the tokens from `start` up to, not including, `end`: `4–7`."""
    return str(start) if end - start <= 1 else f"{start}–{end - 1}"


def listed(parts: Sequence[str]) -> str:
    """Return parts as a reader lists them: `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
