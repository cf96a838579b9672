"""Tables of an allocation study: a row an arm, and the numbers of its figures."""

from typing import Any

from hylorada.report import wording
from hylorada.report.allocation_data import (
    bits_per_coordinate,
    data,
    layer_places,
    risk_unit,
    share_of_b,
    value_of,
)
from hylorada.report.columns import (
    Column,
    Table,
    estimate,
    plain,
    rounded,
    spread,
    text,
    whole,
)
from hylorada.report.marks import finite


def summary(study: dict[str, Any]) -> Table:
    """Return what every way to divide coordinates came to: shares, bits, file, risks, bound."""
    rows = [_summary(arm) for arm in study["arms"] if arm["allocation"]]
    columns = [
        Column("arm", "Arm", text),
        Column("budget", "Coordinates", whole),
        Column("share_of_b", "B's share", rounded(2)),
        Column("perplexity", "Perplexity", spread(wording.number)),
        Column("bits", "Bits", whole),
        Column("bits_per_coordinate", "Bits per coordinate", rounded(2)),
        Column("file_bytes", "File, bytes", whole),
        Column("risk_unquantised", "Risk before quantising", rounded(3)),
        Column("risk", "Risk", spread(lambda value: wording.number(value, 3), 3)),
        Column("bound", "Bound", rounded(3)),
        Column("certificates", "Certificates", whole),
    ]
    caption = (
        "Means over seeds. Bits are those of the message that holds the trained numbers; the file "
        f"holds its header too. Risks and bounds are in {risk_unit(study)} of the certified "
        "documents, perplexity is that of the test text."
    )
    return Table(caption, columns, rows).without_empty_columns()


def layer_gates(study: dict[str, Any]) -> Table:
    """Return γ of every layer, a column a seed of a learned arm."""
    found = data(study, "layer_gates")
    columns = [Column("layer", "Layer", text)]
    by_layer: dict[str, dict[str, float | None]] = {}
    for arm in found:
        names = [f"{arm['name']}, {column}" for column in arm["columns"]]
        columns += [Column(name, name, rounded(3)) for name in names]
        for layer, weights in zip(arm["rows"], arm["weights"], strict=False):
            by_layer.setdefault(layer, {}).update(zip(names, weights, strict=False))
    rows = [
        [layer, *(weights.get(column.name) for column in columns[1:])]
        for layer, weights in by_layer.items()
    ]
    return Table("γ, B's share of the coordinates, by layer.", columns, rows)


def gradients(study: dict[str, Any]) -> Table:
    """Return the norms of both factors' gradients beside the final γ, a row a layer of an arm."""
    rows = [
        [arm["name"], place.layer, place.norms[0], place.norms[1], place.ratio, place.gate]
        for arm in study["arms"]
        for place in layer_places(arm)
    ]
    columns = [
        Column("arm", "Arm", text),
        Column("layer", "Layer", text),
        Column("gradient_a", "‖∇A‖", plain(wording.significant)),
        Column("gradient_b", "‖∇B‖", plain(wording.significant)),
        Column("ratio", "‖∇B‖ / ‖∇A‖", plain(wording.significant)),
        Column("gamma", "Final γ", rounded(3)),
    ]
    caption = "Norms of the gradients of a layer's factors, means over training and seeds."
    return Table(caption, columns, rows)


def bound_parts(study: dict[str, Any]) -> Table:
    """Return what each bound is the sum of."""
    found = data(study, "bound_parts")
    names = list(dict.fromkeys(part["name"] for row in found for part in row["parts"]))
    rows = []
    for row in found:
        parts = {part["name"]: part.get("value") for part in row["parts"]}
        known = [value for value in parts.values() if finite(value)]
        rows.append([row["name"], *(parts.get(name) for name in names), sum(known)])
    columns = [
        Column("arm", "Arm", text),
        *(Column(name.replace(" ", "_"), name.capitalize(), rounded(4)) for name in names),
        Column("bound", "Sum", rounded(4)),
    ]
    caption = f"What each bound is the sum of, in {risk_unit(study)}, means over seeds."
    return Table(caption, columns, rows)


def _summary(arm: dict[str, Any]) -> list[Any]:
    found = arm["allocation"]
    certificates = found.get("certificates")
    return [
        arm["name"],
        found.get("budget"),
        share_of_b(arm),
        estimate(arm["perplexity"]),
        value_of(found.get("bits")),
        bits_per_coordinate(arm),
        found.get("file_bytes"),
        value_of(found.get("risk_unquantised")),
        estimate(found.get("risk")),
        value_of(found.get("bound")),
        len(certificates) if isinstance(certificates, list) else certificates,
    ]
