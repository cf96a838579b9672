"""What is known of a statement at one error probability, and how its numbers are written."""

from dataclasses import dataclass

from hylorada.verdicts.sentences import counted

OPEN = "inconclusive"
FEWEST_SEEDS = 3  # two have one degree of freedom: an interval a dozen standard errors wide
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A label, the estimate it was read from with its interval, and both in words."""

    label: str
    estimate: float | None
    interval: Interval | None
    detail: str
    sentence: str


def unknown(claim: str, reason: str) -> Finding:
    """Return the finding where nothing was measured."""
    sentence = f"Nothing can be said on whether {claim}. {reason}"
    return Finding(label=OPEN, estimate=None, interval=None, detail=reason, sentence=sentence)


def more_seeds(seeds: int) -> str:
    """Return in words how many seeds are missing before anything can be said."""
    return (
        f"; {FEWEST_SEEDS} seeds are needed at least, {counted(FEWEST_SEEDS - seeds, 'more seed')}"
    )


def signed(value: float, interval: Interval | None = None) -> str:
    """Return a number with its sign, and its interval where there is one: `+0.04 [0.01, 0.07]`."""
    ends = "" if interval is None else f" [{', '.join(number(end) for end in interval)}]"
    return f"{'+' if value > 0 else ''}{number(value)}{ends}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with fixed digits and a true minus sign."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")
