"""Figures of the documents: they are those of BENCHMARKS.md, greedy and sampled side by side."""

import pytest

from experiments.bench import PATH, read_sections
from experiments.figures import BEGIN, END, PAGES, ROOT, Figures, put, side_by_side, tables_in, write_pages

SPEED = """Speed-up, {way}:

| arm   | tokens/s | all               | no loops |
| ----- | -------- | ----------------- | -------- |
| plain | 10       | 1                 | 1        |
| quick | 2{n}     | 1.{n} [1.0, 1.9]  | 1.1      |

Why:

| arm   | tau  | c   | all  | v | propose/T | other/T |
| ----- | ---- | --- | ---- | - | --------- | ------- |
| plain | 1    | -   | none | 1 | 0         | 0.5     |
| quick | {n}  | 0.1 | none | 2 | 0.25      | 0.5     |
"""
SECTIONS = {"Race": SPEED.format(way="greedy", n=5), "Race, sampled": SPEED.format(way="sampled", n=3)}
FOUND = ("speed-up", "no loops", "tau", "c", "cost", "pays below")
DOCUMENT = f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n"


def test_a_row_has_the_cells_of_all_tables_of_both_sections():
    plain, quick = tables_in(side_by_side(SECTIONS, Figures("Race")))[0]
    assert list(quick) == ["arm", *(f"{way}: {x}" for way in ("greedy", "sampled") for x in FOUND)]
    assert quick["greedy: speed-up"] == "1.5 [1.0, 1.9]"
    assert (quick["greedy: tau"], quick["sampled: tau"]) == ("5", "3")
    assert plain["sampled: c"] == "-"
    assert (plain["greedy: cost"], plain["greedy: pays below"]) == ("1.50", "1.50")
    assert (quick["greedy: cost"], quick["greedy: pays below"]) == ("2.75", "7.50")


def test_rows_can_be_chosen():
    (row,) = tables_in(side_by_side(SECTIONS, Figures("Race", ("quick",))))[0]
    assert row["arm"] == "quick"


def test_figures_take_the_place_of_those_before(tmp_path):
    (tmp_path / "page.md").write_text(DOCUMENT)
    assert write_pages(SECTIONS, {"page.md": Figures("Race")}, tmp_path) == ["page.md"]
    text = (tmp_path / "page.md").read_text()
    assert text.startswith(f"Before.\n\n{BEGIN}\n| arm")
    assert text.endswith(f"|\n{END}\n\nAfter.\n")
    assert put(text, "old") == DOCUMENT


@pytest.mark.parametrize("text", ["no marks", f"{END} {BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_document_without_its_marks_is_refused(text):
    with pytest.raises(ValueError, match="around the figures"):
        put(text, "new")


@pytest.mark.parametrize(("wanted", "message"), [(Figures("Walk"), "lacks"), (Figures("Race", ("slow",)), "slow")])
def test_what_was_not_measured_is_refused(wanted, message):
    with pytest.raises(ValueError, match=message):
        side_by_side(SECTIONS, wanted)


@pytest.mark.parametrize("name", PAGES)
def test_the_documents_have_the_figures_of_the_benchmarks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert put(text, side_by_side(read_sections(PATH.read_text(encoding="utf-8")), PAGES[name])) == text
