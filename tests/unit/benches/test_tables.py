"""Tables say what was measured on what, with an interval beside every ratio."""

import io
from typing import Any

from rich.console import Console

from hylorada.benches.tables import adapter_tables


def run(what: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"shape": {"name": "GPT-2 2x16"}, "dtype": "float32", "targets": "all"}
    return {"what": what, **common, "methods": {"DoRA": row}, **more}


TIME = {"value": 1.2345, "low": 1.1, "high": 1.4}
TIMES = {
    "time": TIME,
    "processor_time": {"value": 1.0, "low": 0.9, "high": 1.05},
    "least_processor_time": 0.98,
}
CELLS = ["DoRA", "1.234", "1.10–1.40", "1.000", "0.90–1.05", "0.980"]


def cells(row: dict[str, Any]) -> list[str]:
    (table,) = adapter_tables({"runs": [run("a", row)]})
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    line = next(line for line in text.getvalue().splitlines() if "DoRA" in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_every_run_has_its_table() -> None:
    tables = list(adapter_tables({"runs": [run("a", TIMES), run("b", TIMES)]}))
    assert [str(table.title) for table in tables] == [
        "a: GPT-2 2x16, float32, all targets",
        "b: GPT-2 2x16, float32, all targets",
    ]


def test_dropout_is_named_where_there_is_any() -> None:
    titles = [
        str(table.title)
        for dropout in (0.0, 0.1)
        for table in adapter_tables({"runs": [run("a", TIMES, dropout=dropout)]})
    ]
    assert "dropout" not in titles[0]
    assert titles[1].endswith("dropout 0.1")


def test_a_row_holds_the_ratio_its_interval_and_the_memory() -> None:
    found = cells({**TIMES, "memory": 2.0, "megabytes": 1.0, "trainable": 3})
    assert found == [*CELLS, "2.000"]


def test_decoding_has_no_memory() -> None:
    assert cells(TIMES) == [*CELLS, ""]
