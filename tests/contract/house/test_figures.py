"""Figures of the documents: they are those of benchmarks/, greedy and then sampled."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.bench import sections as bench
from experiments.bench.benchmark_figures import (
    BEGIN,
    END,
    PAGES,
    ROOT,
    DocumentFigures,
    both_ways,
    cells_of,
    needs_of,
    put,
    tables_in,
    write_pages,
)
from experiments.bench.sections import read_sections

SPEED = """Speed-up, {way}:

| arm   | tokens/s | decoding alone | end to end        | no loops |
| ----- | -------- | -------------- | ----------------- | -------- |
| plain | 10       | 1              | 1                 | 1        |
| quick | 2{n}     | 2.{n}          | 1.{n} [1.0, 1.9]  | 1.1      |

Why:

| arm   | tau  | c   | all  | v | propose/T | other/T |
| ----- | ---- | --- | ---- | - | --------- | ------- |
| plain | 1    | -   | none | 1 | 0         | 0.5     |
| quick | {n}  | 0.1 | none | 2 | 0.25      | 0.5     |
"""
SECTIONS = {"Race": SPEED.format(way="greedy", n=5), "Race, sampled": SPEED.format(way="sampled", n=3)}
FOUND = ("decoding alone", "end to end", "no loops", "tau", "c", "cost", "pays below")
DOCUMENT = f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n"


def test_a_row_has_the_cells_of_all_tables_of_its_section():
    text = both_ways(SECTIONS, DocumentFigures("Race"))
    assert re.findall(r"^(\w+):\n\n\| arm", text, flags=re.MULTILINE) == ["Greedy", "Sampled"]
    greedy, sampled, _ = tables_in(text)
    (plain, quick), (twin, drawn) = greedy, sampled
    assert [list(row) for row in (plain, quick, twin, drawn)] == [["arm", *FOUND]] * 4
    assert (quick["decoding alone"], quick["end to end"]) == ("2.5", "1.5 [1.0, 1.9]")
    assert (quick["tau"], drawn["tau"]) == ("5", "3")
    assert twin["c"] == "-"
    assert (plain["cost"], plain["pays below"]) == ("1.50", "1.50")
    assert (quick["cost"], quick["pays below"]) == ("2.75", "7.50")


def test_each_part_has_the_limit_at_which_an_arm_comes_out_even():
    (row,) = tables_in(both_ways(SECTIONS, DocumentFigures("Race")))[2]
    assert row == {
        "arm": "quick",
        **{"greedy: tau": "5 → 1.83", "greedy: v": "2 → 6.75", "greedy: c": "0.1 → 2"},
        **{"sampled: tau": "3 → 1.83", "sampled: v": "2 → 3.75", "sampled: c": "0.1 → 0.8"},
    }


def test_a_part_that_cannot_make_up_for_the_others_has_no_limit():
    plain = {"tau": "1", "c": "-", "v": "1", "propose/T": "0", "other/T": "0.5"}
    dear = {"tau": "1.5", "c": "1", "v": "2", "propose/T": "2", "other/T": "2.5"}
    assert needs_of(dear, plain) == {"tau": "1.5 → none", "v": "2 → none", "c": "1 → none"}
    assert needs_of({**dear, "tau": "2.9"}, plain) == {"tau": "2.9 → none", "v": "2 → none", "c": "1 → none"}
    assert needs_of({**dear, "v": "1", "other/T": "0.5"}, plain)["tau"] == "1.5 → 2.33"


def test_arms_that_draft_for_nothing_need_nothing():
    free = {title: text.replace("| 0.1 | none", "| 0   | none") for title, text in SECTIONS.items()}
    assert len(tables_in(both_ways(free, DocumentFigures("Race")))) == 2


def test_a_section_without_a_sampled_twin_is_shown_alone():
    (rows,) = tables_in(both_ways({"Race": SECTIONS["Race"]}, DocumentFigures("Race", has_twin=False)))
    assert [row["end to end"] for row in rows] == ["1", "1.5 [1.0, 1.9]"]


def test_a_table_that_is_too_wide_only_with_its_padding_is_written_without():
    names = ["quick", "x" * 101]
    text = SECTIONS["Race"].replace("\n\nWhy:", f"\n| {names[1]} | 9 | - | 0.5 | - |\n\nWhy:")
    for columns, padded in (("tau",), True), (("tokens/s", "tau"), False), (FOUND, True):
        wanted = DocumentFigures("Race", tuple(names), columns={name: name for name in columns}, has_twin=False)
        table = both_ways({"Race": text}, wanted)
        assert [row["arm"] for row in tables_in(table)[0]] == names
        assert ("| quick |" not in table) == padded


def test_a_row_that_lacks_a_column_of_others_has_none():
    text = SECTIONS["Race"].replace("\n\nWhy:", "\n| other | 9 | - | 0.5 | - |\n\nWhy:")
    wanted = DocumentFigures("Race", ("quick", "other"), columns={"tau": "tau"}, has_twin=False)
    (rows,) = tables_in(both_ways({"Race": text}, wanted))
    assert rows == [{"arm": "quick", "tau": "5"}, {"arm": "other", "tau": "-"}]


@pytest.mark.parametrize("section", ["All strategies", "All strategies, sampled"])
def test_an_arm_is_faster_just_where_each_part_is_on_the_right_side_of_its_limit(section):
    rows = cells_of(read_sections()[section], "arm")
    told_apart = [arm for arm, row in rows.items() if abs(float(row["decoding alone"].split()[0]) - 1) > 0.03]
    assert len(told_apart) > 6
    for arm in told_apart:
        for part, cell in needs_of(rows[arm], rows["plain"]).items():
            none = "inf" if part == "tau" else "-inf"
            measured, limit = (float(none if text == "none" else text) for text in cell.split(" → "))
            assert (float(rows[arm]["decoding alone"].split()[0]) > 1) == (
                measured > limit if part == "tau" else measured < limit
            )


def test_rows_can_be_chosen():
    (row,) = tables_in(both_ways(SECTIONS, DocumentFigures("Race", ("quick",))))[0]
    assert row["arm"] == "quick"


def test_documents_are_utf_8_whatever_the_locale(tmp_path, monkeypatch):
    read, write, page = Path.read_text, Path.write_text, tmp_path / "page.md"
    page.write_text(DOCUMENT.replace("Before.", "Before →."), encoding="utf-8")
    monkeypatch.setattr(Path, "read_text", lambda path, encoding="ascii": read(path, encoding))
    monkeypatch.setattr(Path, "write_text", lambda path, text, encoding="ascii": write(path, text, encoding))
    write_pages(SECTIONS, {"page.md": DocumentFigures("Race")}, tmp_path)
    assert page.read_text(encoding="utf-8").startswith("Before →.")


def test_figures_take_the_place_of_those_before(tmp_path):
    (tmp_path / "page.md").write_text(DOCUMENT)
    assert write_pages(SECTIONS, {"page.md": DocumentFigures("Race")}, tmp_path) == ["page.md"]
    text = (tmp_path / "page.md").read_text()
    assert text.startswith(f"Before.\n\n{BEGIN}\nGreedy:\n\n| arm")
    assert text.endswith(f"|\n{END}\n\nAfter.\n")
    assert put(text, "old") == DOCUMENT


@pytest.mark.parametrize("text", ["no marks", f"{END} {BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_document_without_its_marks_is_refused(text):
    with pytest.raises(ValueError, match="around the figures"):
        put(text, "new")


@pytest.mark.parametrize(
    ("wanted", "message"), [(DocumentFigures("Walk"), "lacks"), (DocumentFigures("Race", ("slow",)), "slow")]
)
def test_what_was_not_measured_is_refused(wanted, message):
    with pytest.raises(ValueError, match=message):
        both_ways(SECTIONS, wanted)


@pytest.mark.parametrize("name", PAGES)
def test_the_documents_have_the_figures_of_the_benchmarks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert put(text, both_ways(read_sections(), PAGES[name])) == text


def test_commands_of_the_benchmarks_print_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(argv: list[str], **options: Any) -> SimpleNamespace:
        asked.update(options, argv=argv)
        return SimpleNamespace(stdout=" | arm |\n")

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert bench.run("python -m experiments.compare --seed 3") == "| arm |"
    assert asked["argv"][1:] == ["-m", "experiments.compare", "--seed", "3"]
    assert asked["env"]["SPECDEC_TABLES"] == "markdown"
