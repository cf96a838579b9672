"""Frontiers: what each arm costs against what it reaches, and who is not surpassed."""

from collections.abc import Sequence

from hylorada.records.studies import Study
from hylorada.report import axes as plots
from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Figure


def parameters(study: Study, sheet: Sheet) -> Caption | None:
    """Draw perplexity against trainable parameters, and return who is on the frontier."""
    drawn = plots.strokes(study)
    values = {arm.name: arm.perplexity.value for arm in study.arms if arm.perplexity}
    offers = []
    for arm in study.arms:
        value, size = values.get(arm.name), arm.trainable_parameters
        if arm.role == "self_check" or value is None or not size:
            continue
        baseline, interval = values.get(plots.baseline_of(study, arm)), None
        if arm.gain and arm.gain.interval and baseline is not None:
            low, high = arm.gain.interval
            interval = baseline * (1 - high / 100), baseline * (1 - low / 100)
        offers.append(plots.Label(size, value, arm.name, drawn[arm.name].colour, interval))
    if len(offers) < 2:
        return None
    best = draw_frontier(offers, sheet, "trainable parameters", "perplexity")
    named = [f"{o.text} ({o.x:,.0f} parameters, perplexity {wording.number(o.y)})" for o in best]
    return Caption(
        "Perplexity against the number of trained parameters; lower and further left is better. "
        "Filled points are on the frontier: no arm has both fewer parameters and a lower "
        "perplexity. Bars are the 95\u00a0% intervals of the gains, so they leave out the noise of "
        "the text, which all arms share.",
        f"On the frontier: {wording.listed(named)}.",
    )


def draw_frontier(
    offers: Sequence[plots.Label], sheet: Sheet, x_label: str, y_label: str
) -> list[plots.Label]:
    """Draw what arms cost (x) and reach (y), both better when lower; return who is unsurpassed."""
    height = 270 + (16 if sheet.narrow else 6) * max(0, len(offers) - 6)
    (axes,) = sheet.panels(1, height=height, left=52, right=26, top=36)
    best, costs = unsurpassed(offers), [offer.x for offer in offers]
    across, up = [*(offer.x for offer in best), max(costs)], [*(o.y for o in best), best[-1].y]
    axes.step(across, up, where="post", color=COLOURS["rule"], linewidth=3, zorder=1)
    for offer in offers:
        if offer.interval:
            axes.plot([offer.x] * 2, offer.interval, color=offer.colour, linewidth=1.6)
        fill = offer.colour if offer in best else COLOURS["paper"]
        axes.plot([offer.x], [offer.y], "o", color=offer.colour, mfc=fill, markersize=7.5)
    wide = min(costs) > 0 and max(costs) > 4 * min(costs)
    if not wide:
        margin = 0.07 * (max(costs) - min(costs)) or 1.0
        axes.set_xlim(min(costs) - margin, max(costs) + margin)
    plots.few_ticks(axes, x=3 if sheet.narrow else 6, x_label=x_label)
    if wide:
        plots.logarithmic(axes)
    plots.title(axes, y_label)
    plots.label_near(axes, offers, length=19 if sheet.narrow else 26)
    return best


def unsurpassed(offers: Sequence[plots.Label]) -> list[plots.Label]:
    """Return the offers that no other equals or betters in both ways, the cheapest first."""
    best: list[plots.Label] = []
    for offer in sorted(offers, key=lambda offer: (offer.x, offer.y)):
        if not best or offer.y < best[-1].y:
            best.append(offer)
    return best


FIGURES.add(Figure("frontier", "Parameters against perplexity", parameters))
