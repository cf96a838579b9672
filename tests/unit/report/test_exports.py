"""Tables as files: CSV keeps every digit, LaTeX typesets any name."""

import csv
import io
from pathlib import Path

import pytest

from hylorada.records.studies import Arm, SeedMean, Study
from hylorada.report.figures import Table, as_csv, as_latex, escaped, save_tables, tables_of
from tests.unit.report.example import example


def results(name: str) -> Table:
    perplexity = SeedMean(value=28.123456789, interval=(28.0, 28.25))
    study = Study(arms=[Arm(name=name, perplexity=perplexity), Arm(name="unknown")])
    return tables_of(study)["results"]


def test_csv_holds_every_digit_and_both_ends_of_an_interval() -> None:
    rows = list(csv.reader(io.StringIO(as_csv(results("one")))))
    assert rows == [
        ["arm", "arm_note", "perplexity", "perplexity_low", "perplexity_high"],
        ["one", "", "28.123456789", "28.0", "28.25"],
        ["unknown", "", "", "", ""],
    ]


def test_csv_quotes_names_with_commas_quotes_and_lines() -> None:
    name = 'a, "b"\nc'
    rows = list(csv.reader(io.StringIO(as_csv(results(name)))))
    assert rows[1][0] == name


def test_latex_has_a_row_an_arm_between_rules() -> None:
    lines = as_latex(results("one")).splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lr}", r"\toprule", r"Arm & Perplexity \\"]
    assert lines[5] == r"one & 28.12 [28.00, 28.25] \\"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_latex_puts_notes_in_brackets() -> None:
    text = as_latex(tables_of(example())["results"])
    assert r"B~moderate (explained by low\_rank) \\" in text
    assert "bias (control · one vector after the norm) & 28.19" in text


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("rank_1 & 5 % #2", r"rank\_1 \& 5 \% \#2"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("$x^2~y$", r"\$x\textasciicircum{}2\textasciitilde{}y\$"),
        ("−1\u00a0% ± 2", r"$-$1~\% $\pm$ 2"),
        ("0–15\nnext", "0--15 next"),
    ],
)
def test_text_is_typeset_as_it_stands(text: str, latex: str) -> None:
    assert escaped(text) == latex


def test_every_table_becomes_a_file_of_every_format(tmp_path: Path) -> None:
    files = save_tables(example(), tmp_path, ["csv", "tex"], "landmarks-")
    assert len(files) == 2 * len(tables_of(example()))
    assert all(file.stat().st_size > 0 for file in files)
    assert (tmp_path / "landmarks-results.csv").read_text().startswith("arm,arm_note,perplexity,")


@pytest.mark.parametrize("key", sorted(tables_of(example())))
def test_csv_rows_are_as_long_as_the_header(key: str) -> None:
    text = as_csv(tables_of(example())[key])
    assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
