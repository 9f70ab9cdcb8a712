"""Tables as data, and as terminals, files, documents, notebooks and pages show them."""

import io
import re
import sys
from typing import Any

import pytest
from rich.console import Console

from experiments.bench.benchmark_figures import tables_in
from specdec.stats.report.printout import WIDTH, column_groups, latex_of, markdown_of, show, text_of
from specdec.stats.result_table import ColumnKind, Table

REFUSED = "refused: the package is missing, and a long explanation says how it can be had"
ROWS: list[dict[str, Any]] = [
    {"arm": "plain", "tokens/s": 6222.4, "a": "1", "b": "1", "all": "1", "rate@0": None, "rate@1": 0.5, "says": "4/4"},
    {
        "arm": "transformers:assisted-heuristic",
        "tokens/s": 11009.0,
        "a": "2.25 [2.01, 2.52]",
        "b": "1.47 [1.15, 1.88]",
        "all": "1.77 [1.45, 2.16]",
        "rate@0": 0.12345,
        "rate@1": 1.0,
        "says": REFUSED,
    },
]
LEGEND = {"a, b": "of one kind of prompt", "all": "of all prompts, " + "and so on " * 20, "rate@k": "what is kept"}
TABLE = Table("Speed", ROWS, "One.\n\nTwo.", "speed", ("arm", "tokens/s", "all", "says"), LEGEND)


def console(width: int) -> Console:
    return Console(width=width, force_terminal=False, highlight=False, markup=False)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width, wide):
    text = text_of(["A conclusion, " + "which goes on, " * 10, TABLE], console(width), wide)
    assert max(map(len, text.splitlines())) <= width
    shown = [cell for name in TABLE.visible_columns(wide) for cell in TABLE.cells(name)]
    assert [word for cell in shown for word in cell.split() if word not in text] == []
    assert text.startswith("A conclusion, ")
    assert ("--wide adds a, b, rate@k." in text) is not wide


def test_paths_stay_whole_where_texts_are_wrapped():
    path = "/a/long/path/of/results" * 5
    assert text_of([f"A picture of many things, as ever: {path}"], console(60)).splitlines()[-1] == path


def test_columns_that_do_not_fit_stand_below_with_what_names_the_rows():
    groups = column_groups(TABLE, TABLE.names, 80)
    assert len(groups) > 1
    assert [group[0] for group in groups] == ["arm"] * len(groups)
    assert [name for group in groups for name in group[1:]] == list(TABLE.names[1:])
    assert column_groups(TABLE, TABLE.names, 400) == [list(TABLE.names)]
    twice = Table("", [{"task": task, "arm": arm, "x": 1} for task in "ab" for arm in "cd"])
    assert twice.leading() == 2
    assert column_groups(twice, twice.names, 5) == [["task", "arm", "x"]]


def test_a_heading_that_has_room_stands_on_one_line():
    lines = text_of([Table("", [{"arm": "x", "compared with": "plain", "W": 1}])], console(80)).splitlines()
    assert [line.split() for line in lines if "with" in line] == [["arm", "compared", "with", "W"]]


def test_cells_have_three_digits_and_columns_a_kind():
    assert TABLE.cells("tokens/s") == ["6,222", "11,009"]
    assert TABLE.cells("rate@0") == ["-", "0.123"]
    kinds = {
        "arm": ColumnKind.TEXT,
        "tokens/s": ColumnKind.NUMBER,
        "all": ColumnKind.INTERVAL,
        "says": ColumnKind.LONG,
        "rate@0": ColumnKind.NUMBER,
    }
    assert {name: TABLE.kind(name) for name in kinds} == kinds
    assert Table("", [{"run": "0000: length 2"}]).kind("run") is ColumnKind.TEXT
    assert Table("", [{"identical": "4/4"}]).kind("identical") is ColumnKind.INTERVAL


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": []}, "'Speed' needs at least one row"),
        ({"rows": [*ROWS, {"arm": "x"}]}, "every row of a table must have the columns"),
        ({"brief": ("arm", "none")}, "must be 5 at most of the columns"),
        ({"brief": tuple(ROWS[0])[:6]}, "must be 5 at most of the columns"),
    ],
)
def test_tables_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Table(**{"title": "Speed", "rows": ROWS, **change})


def test_a_document_has_all_columns_after_what_they_mean():
    text = markdown_of(["First.", TABLE])
    head, line, *rows = text.splitlines()[-4:]
    assert [name.strip() for name in head.strip("| ").split(" | ")] == list(ROWS[0])
    assert set(line) <= set("|- ")
    assert len(rows) == len(ROWS)
    assert text.startswith("First.\n\n### Speed\n\nOne.\n\nTwo.\n\nColumns: a, b: of one kind of prompt; all: ")


def test_a_bar_in_a_name_or_a_cell_ends_no_cell_of_a_document():
    rows = [{"C|C++": "a | b", "last": "|"}, {"C|C++": "c", "last": "d|"}]
    assert tables_in(Table("", rows).markdown()) == [rows]


def test_where_output_is_no_terminal_it_is_plain_text_of_one_width(capsys):
    show(["Said.", TABLE])
    printed = capsys.readouterr().out
    assert printed.rstrip("\n") == text_of(["Said.", TABLE], console(WIDTH))
    assert "\x1b" not in printed


def test_a_terminal_has_the_same_words_in_its_own_width(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    told = Terminal()
    monkeypatch.setattr(sys, "stdout", told)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    show(["Said.", TABLE])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told.getvalue())
    assert "\x1b[1mSpeed" in told.getvalue()
    assert [line.rstrip() for line in plain.splitlines()] == text_of(["Said.", TABLE], console(120)).splitlines()


def test_latex_has_all_columns_after_comments_and_no_cell_means_more_than_its_characters():
    rows = [{"arm_a": "[a]", "50%": 1.5}, {"arm_a": "*x & y|z", "50%": None}, {"arm_a": r"\{1 → <2^~$#", "50%": 2.0}]
    assert latex_of(["One 50%.\nTwo.", Table("A", rows, "It\n\nis.", legend={"arm_a": "b"})]).splitlines() == [
        "% One 50%.",
        "% Two.",
        "",
        "% A",
        "% It",
        "%",
        "% is.",
        "% Columns: arm_a: b.",
        r"\begin{tabular}{lr}",
        r"\hline",
        r"arm\_a & 50\% \\",
        r"\hline",
        r"{[}a] & 1.5 \\",
        r"{*}x \& y\textbar{}z & - \\",
        r"\textbackslash{}\{1 $\rightarrow$ \textless{}2\textasciicircum{}\textasciitilde{}\$\# & 2 \\",
        r"\hline",
        r"\end{tabular}",
    ]


def test_the_environment_asks_for_a_document(monkeypatch, capsys):
    for form, document in {"markdown": markdown_of, "latex": latex_of}.items():
        monkeypatch.setenv("SPECDEC_TABLES", form)
        show([TABLE])
        assert capsys.readouterr().out == f"{document([TABLE])}\n"
    monkeypatch.setenv("SPECDEC_TABLES", "html")
    with pytest.raises(ValueError, match="SPECDEC_TABLES=html: give markdown or latex, or leave it out"):
        show([TABLE])


def test_a_notebook_shows_it_with_everything_escaped():
    shown = Table("<b>", [{"a": "<script>", "b": 1.5}], "1 < 2")._repr_html_()
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "<p>1 &lt; 2</p>" in shown
    assert '<td class="number">1.5</td>' in shown
    assert repr(TABLE) == "Table('Speed': 2 rows of 8 columns: arm, tokens/s, a, b, all, rate@0, rate@1, says)"
