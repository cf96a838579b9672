"""Frontiers: what each arm costs against what it reaches, and who is not surpassed."""

from typing import Any, NamedTuple

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.labelling import Label, label_near
from hylorada.report.marks import baseline_of, ends, finite, strokes
from hylorada.report.scales import few_ticks, logarithmic, title


class Offer(NamedTuple):
    """An arm's cost and result, both better when lower."""

    name: str
    cost: float
    result: float
    low: float | None
    high: float | None
    colour: str


def parameters(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw perplexity against trainable parameters, and return who is on the frontier."""
    drawn = strokes(study)
    values = {arm["name"]: (arm["perplexity"] or {}).get("value") for arm in study["arms"]}
    offers = [
        Offer(
            arm["name"],
            float(arm["trainable_parameters"]),
            float(found["value"]),
            *_paired(arm, values.get(baseline_of(study, arm))),
            drawn[arm["name"]].colour,
        )
        for arm in study["arms"]
        if arm["role"] != "self_check"
        and (found := arm["perplexity"])
        and finite(found.get("value"), arm["trainable_parameters"])
        and arm["trainable_parameters"] > 0
    ]
    if len(offers) < 2:
        return None
    best = draw_frontier(offers, sheet, "trainable parameters", "perplexity")
    named = [
        f"{offer.name} ({offer.cost:,.0f} parameters, perplexity {wording.number(offer.result)})"
        for offer in best
    ]
    return Caption(
        "Perplexity against the number of trained parameters; lower and further left is better. "
        "Filled points are on the frontier: no arm has both fewer parameters and a lower "
        "perplexity. Bars are the 95\u00a0% intervals of the gains, so they leave out the noise of "
        "the text, which all arms share.",
        f"On the frontier: {wording.listed(named)}.",
    )


def draw_frontier(offers: list[Offer], sheet: Sheet, x_label: str, y_label: str) -> list[Offer]:
    """Draw offers and the staircase of those that none surpasses; return the latter."""
    height = 270 + (16 if sheet.narrow else 6) * max(0, len(offers) - 6)
    (axes,) = sheet.panels(1, columns=1, height=height, left=52, right=26, top=36)
    best = unsurpassed(offers)
    _staircase(axes, best, offers)
    bars = [
        (offer.cost, offer.low, offer.high)
        for offer in offers
        if offer.low is not None and offer.high is not None
    ]
    for offer in offers:
        if offer.low is not None and offer.high is not None:
            axes.plot([offer.cost] * 2, [offer.low, offer.high], color=offer.colour, linewidth=1.6)
        fill = offer.colour if offer in best else COLOURS["paper"]
        axes.plot([offer.cost], [offer.result], "o", color=offer.colour, mfc=fill, markersize=7.5)
    costs = [offer.cost for offer in offers]
    wide = min(costs) > 0 and max(costs) > 4 * min(costs)
    if not wide:
        margin = 0.07 * (max(costs) - min(costs)) or 1.0
        axes.set_xlim(min(costs) - margin, max(costs) + margin)
    few_ticks(axes, x=3 if sheet.narrow else 6, x_label=x_label)
    if wide:
        logarithmic(axes)
    title(axes, y_label)
    labels = [Label(offer.cost, offer.result, offer.name, offer.colour) for offer in offers]
    label_near(axes, labels, length=19 if sheet.narrow else 26, bars=bars)
    return best


def _paired(arm: dict[str, Any], baseline: float | None) -> tuple[float | None, float | None]:
    """Return the perplexities that the interval of an arm's gain leaves possible."""
    low, high = ends((arm["gain"] or {}).get("interval"))
    if low is None or high is None or not finite(baseline):
        return None, None
    assert baseline is not None
    return baseline * (1 - high / 100), baseline * (1 - low / 100)


def unsurpassed(offers: list[Offer]) -> list[Offer]:
    """Return the offers that no other equals or betters in both ways, the cheapest first."""
    best: list[Offer] = []
    for offer in sorted(offers, key=lambda offer: (offer.cost, offer.result)):
        if not best or offer.result < best[-1].result:
            best.append(offer)
    return best


def _staircase(axes: Axes, best: list[Offer], offers: list[Offer]) -> None:
    costs = [offer.cost for offer in best] + [max(offer.cost for offer in offers)]
    results = [offer.result for offer in best] + [best[-1].result]
    axes.step(costs, results, where="post", color=COLOURS["rule"], linewidth=3, zorder=1)
