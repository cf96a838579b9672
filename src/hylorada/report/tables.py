"""Every table of the page, in its order. A new one is a function and a line in `TABLES`."""

from collections.abc import Callable
from typing import Any

from hylorada.report import allocation_tables, wording
from hylorada.report.columns import (
    Column,
    Spread,
    Table,
    estimate,
    pair,
    plain,
    rounded,
    spread,
    text,
    whole,
)


def tables_of(study: dict[str, Any]) -> dict[str, Table]:
    """Return the tables that the study has data for, by key."""
    built = {key: build(study) for key, build in TABLES.items()}
    return {key: table for key, table in built.items() if table.rows}


def statements(study: dict[str, Any]) -> Table:
    """Return each statement with its verdict, the estimate it was read from, and its sentence."""
    rows = [
        [
            (one["name"], one.get("claim") or ""),
            one["label"],
            Spread(one.get("estimate"), *(one.get("interval") or (None, None))),
            one.get("unit"),
            one.get("sentence"),
            one.get("detail"),
        ]
        for one in study["statements"]
    ]
    columns = [
        Column("statement", "Statement", pair),
        Column("label", "Verdict", text),
        Column("estimate", "Estimate", spread(lambda value: wording.signed(value, 3), 3)),
        Column("unit", "Unit", text),
        Column("sentence", "In words", text),
        Column("detail", "Detail", text),
    ]
    caption = (
        "Statements that were judged together, so that all verdicts are right at once with "
        "95\u00a0%. Supported and refuted are both shown; inconclusive is not refuted."
    )
    return Table(caption, columns, rows).without_empty_columns()


def results(study: dict[str, Any]) -> Table:
    """Return the main table: one row an arm, the frozen model first."""
    seeds = max((_seeds(arm) for arm in study["arms"]), default=0)
    metric = study["setting"].get("test_tokens")
    tokens = f" on {wording.count(int(metric), 'test token')}" if metric else ""
    rows = [_result(arm) for arm in study["arms"]]
    frozen = study["frozen"]
    if frozen:
        value = frozen.get("perplexity")
        rows.insert(
            0, [("frozen model", "nothing trained"), Spread(value, None, None), *[None] * 5]
        )
    columns = [
        Column("arm", "Arm", pair),
        Column("perplexity", "Perplexity", spread(wording.number)),
        Column("gain_percent", "Gain", spread(wording.percent)),
        Column("added_parameters", "Parameters added", whole),
        Column("parameters_per_percent", "Parameters per 1\u00a0%", whole),
        Column("train_seconds", "Training time", plain(wording.duration)),
        Column("verdict", "Verdict", pair),
    ]
    caption = f"Perplexity{tokens}, mean over {wording.count(seeds, 'seed')}."
    if any(arm["gain"] for arm in study["arms"]):
        caption = (
            f"Perplexity{tokens}, mean over {wording.count(seeds, 'seed')}, and gain over the "
            "baseline in per cent lower perplexity, each with its 95\u00a0% interval. Those of "
            "gains are paired, so they leave out the noise of the text that all arms share, and "
            "adjusted for several arms. Parameters per 1\u00a0% are the added trainable "
            "parameters for each per cent gained. Training time is that of one run."
        )
    return Table(caption, columns, rows).without_empty_columns()


def effects(study: dict[str, Any]) -> Table:
    """Return every effect with its error, and what the literal rule says beside the verdict."""
    rows = [
        [
            arm["name"],
            estimate(arm["gain"]),
            arm["gain"].get("standard_error"),
            arm["gain"].get("clusters"),
            _verdict(arm),
            arm["point_scenario"],
        ]
        for arm in study["arms"]
        if arm["gain"]
    ]
    columns = [
        Column("arm", "Arm", text),
        Column("gain_percent", "Gain", spread(wording.percent)),
        Column("standard_error", "Standard error", rounded(3)),
        Column("seeds", "Seeds", whole),
        Column("verdict", "Verdict", pair),
        Column("literal_rule", "Literal rule", text),
    ]
    caption = (
        "Gain in per cent lower perplexity with its adjusted 95\u00a0% interval. The literal rule "
        "looks at the mean alone; the verdict at the whole interval."
    )
    return Table(caption, columns, rows).without_empty_columns()


def comparisons(study: dict[str, Any]) -> Table:
    """Return each candidate against each control."""
    rows = [
        [one["arm"], one["against"], estimate(one.get("gain")), one.get("sentence")]
        for one in study["comparisons"]
    ]
    columns = [
        Column("arm", "Candidate", text),
        Column("against", "Against", text),
        Column("gain_percent", "Gain", spread(wording.percent)),
        Column("sentence", "In words", text),
    ]
    caption = "Per cent lower perplexity than the control, with its 95\u00a0% interval."
    return Table(caption, columns, rows).without_empty_columns()


def positions(study: dict[str, Any]) -> Table:
    """Return the loss by position, a row a bucket and a column an arm."""
    return _curve_table(
        study,
        "position_curve",
        "Position",
        lambda row: wording.stretch(row["start"], row["end"]),
        "Loss in nats per token by position in the context, with its 95\u00a0% interval.",
    )


def depths(study: dict[str, Any]) -> Table:
    """Return the answer's loss by depth of the evidence, a row a depth and a column an arm."""
    return _curve_table(
        study,
        "depth_curve",
        "Depth",
        lambda row: wording.number(row["depth"]),
        "Loss of the answer in nats per token by depth of the evidence; 95\u00a0% interval.",
    )


def boundaries(study: dict[str, Any]) -> Table:
    """Return where buckets begin, a row a boundary and a column a seed."""
    columns = [Column("boundary", "Boundary", whole)]
    places: list[list[float]] = []
    for arm in study["arms"]:
        found = arm["boundaries"] or {}
        runs = [run["seed"] for run in arm["runs"] or []]
        for index, learned in enumerate(found.get("learned") or []):
            if index == 0:
                columns.append(_token_column(arm["name"], "uniform"))
                places.append(found["uniform"])
            seed = f"seed {runs[index]}" if index < len(runs) else f"run {index + 1}"
            columns.append(_token_column(arm["name"], seed))
            places.append(learned)
    rows = [
        [index + 1, *(row[index] if index < len(row) else None for row in places)]
        for index in range(max(map(len, places), default=0))
    ]
    return Table("First token of each bucket but the first.", columns, rows)


def gates(study: dict[str, Any]) -> Table:
    """Return the mean gates, a row a position bucket of an arm and a column a landmark."""
    found = [(arm["name"], arm["gates"]) for arm in study["arms"] if arm["gates"]]
    names = list(dict.fromkeys(name for _, gate in found for name in gate["columns"]))
    rows = []
    for arm, gate in found:
        for bucket, weights in zip(gate["rows"], gate["weights"], strict=False):
            by_name = dict(zip(gate["columns"], weights, strict=False))
            rows.append([arm, bucket, *(by_name.get(name) for name in names)])
    columns = [
        Column("arm", "Arm", text),
        Column("position", "Position", text),
        *(Column(name, name, rounded(3)) for name in names),
    ]
    return Table("Mean weight of each landmark by position bucket.", columns, rows)


def tuning(study: dict[str, Any]) -> Table:
    """Return every learning rate tried, with its loss on the tuning split."""
    rows = [
        [arm["name"], row["rate"], row["loss"], "chosen" if row.get("chosen") else ""]
        for arm in study["arms"]
        for row in arm["tuning"] or []
    ]
    columns = [
        Column("arm", "Arm", text),
        Column("rate", "Learning rate", plain(wording.significant)),
        Column("loss", "Loss, nats per token", rounded(4)),
        Column("chosen", "", text),
    ]
    return Table("Learning rates tried on the tuning split.", columns, rows)


def cost(study: dict[str, Any]) -> Table:
    """Return what each arm costs."""
    keys = ("train_seconds", "tokens_per_second", "peak_memory_bytes", "adapter_bytes")
    rows = [
        [arm["name"], arm["trainable_parameters"], *((arm["cost"] or {}).get(k) for k in keys)]
        for arm in study["arms"]
    ]
    columns = [
        Column("arm", "Arm", text),
        Column("trainable_parameters", "Trainable parameters", whole),
        Column(keys[0], "Training time", plain(wording.duration)),
        Column(keys[1], "Tokens per second", whole),
        Column(keys[2], "Peak memory", plain(wording.size)),
        Column(keys[3], "Adapter on disk", plain(wording.size)),
    ]
    caption = "What one run costs, mean over seeds; times hold for the machine named below."
    return Table(caption, columns, rows).without_empty_columns()


def checks(study: dict[str, Any]) -> Table:
    """Return what the study checked about itself."""
    rows = [
        [check["name"], "passed" if check.get("passed") else "FAILED", check.get("detail")]
        for check in study["checks"]
    ]
    columns = [
        Column("check", "Check", text),
        Column("outcome", "Outcome", text),
        Column("detail", "Detail", text),
    ]
    caption = "What the study checked about itself; a failed check puts every verdict in doubt."
    return Table(caption, columns, rows).without_empty_columns()


TABLES: dict[str, Callable[[dict[str, Any]], Table]] = {
    "statements": statements,
    "results": results,
    "allocation": allocation_tables.summary,
    "effects": effects,
    "comparisons": comparisons,
    "positions": positions,
    "depths": depths,
    "boundaries": boundaries,
    "gates": gates,
    "layer_gates": allocation_tables.layer_gates,
    "gradient_gates": allocation_tables.gradients,
    "bound_parts": allocation_tables.bound_parts,
    "tuning": tuning,
    "cost": cost,
    "checks": checks,
}


def _result(arm: dict[str, Any]) -> list[Any]:
    return [
        (arm["name"], _role(arm)),
        estimate(arm["perplexity"]),
        estimate(arm["gain"]),
        arm["added_parameters"],
        arm["params_per_percent"],
        (arm["cost"] or {}).get("train_seconds"),
        _verdict(arm),
    ]


def _role(arm: dict[str, Any]) -> str:
    described = str(arm["description"] or "")
    told = arm["role"] != "control" or described.startswith("control")
    return described if told else " · ".join(filter(None, ("control", described)))


def _verdict(arm: dict[str, Any]) -> tuple[str, str] | None:
    if arm["role"] == "baseline":
        return "baseline", ""
    if arm["label"] is None:
        return None
    explained = wording.listed(arm["explained_by"] or [])
    needed = None if arm["role"] == "self_check" else arm["seeds_needed"]
    notes = [
        f"explained by {explained}" if explained else "",
        f"{wording.count(int(needed), 'more seed')} needed" if needed else "",
    ]
    return wording.verdict(arm["label"], arm["meaning"]), "; ".join(filter(None, notes))


def _seeds(arm: dict[str, Any]) -> int:
    return len((arm["perplexity"] or {}).get("by_seed") or [])


def _curve_table(
    study: dict[str, Any],
    source: str,
    heading: str,
    place: Callable[[dict[str, Any]], str],
    caption: str,
) -> Table:
    curves = {
        arm["name"]: {place(row): row for row in arm[source]}
        for arm in study["arms"]
        if arm.get(source)
    }
    places = list(dict.fromkeys(name for curve in curves.values() for name in curve))
    rows = [[name, *(estimate(curve.get(name)) for curve in curves.values())] for name in places]
    columns = [
        Column(heading.lower(), heading, text),
        *(Column(name, name, spread(lambda v: wording.number(v, 3), 3)) for name in curves),
    ]
    return Table(caption, columns, rows)


def _token_column(arm: str, what: str) -> Column:
    return Column(f"{arm} {what}", f"{arm}, {what}", rounded(1))
