"""benchmarks/: what its first page claims stands in the sections, and every page can be read on a narrow screen."""

import re
from pathlib import Path

import pytest

from experiments.bench.benchmark_figures import WIDTH, tables_in
from experiments.bench.page_layout import lay_out, narrow
from experiments.bench.sections import COMMANDS, FILES, FOLDER, LEFT_OUT, read_sections, write_section
from specdec.stats.result_table import Table

FIRST = (FOLDER / "README.md").read_text(encoding="utf-8")
HEADLINES = re.findall(r"^\| (.+?) \| (.*\d.*?) \| \[.+\]\((.+?)#(.+?)\) \| (\w+) \|$", FIRST, flags=re.MULTILINE)


def test_no_line_is_too_wide() -> None:
    lines = [(page.name, line) for page in FOLDER.glob("*.md") for line in page.read_text("utf-8").splitlines()]
    assert len(lines) > 1000
    assert [(name, line) for name, line in lines if len(line) > WIDTH and "](" not in line] == []


def test_every_section_stands_in_its_file() -> None:
    assert set(read_sections()) == set(COMMANDS)
    assert {path.name for path in FOLDER.iterdir()} == {"README.md", *FILES}
    for name in FILES:
        assert f"]({name})" in FIRST


def test_a_section_is_what_its_command_prints() -> None:
    found = {title: re.search(r"`(python -m [^`]*)`", body) for title, body in read_sections().items()}
    printed = {title: one and " ".join(one.group(1).split()) for title, one in found.items()}
    assert printed == dict(COMMANDS)


def test_the_first_page_is_a_screen_of_twelve_figures() -> None:
    assert len(HEADLINES) == 12
    assert len(FIRST.splitlines()) <= 50


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline[0])
def test_a_headline_stands_in_the_section_that_it_names(headline: tuple[str, ...]) -> None:
    _, figure, name, anchor, processor = headline
    sections = {title: body for title, body in read_sections().items() if title in FILES[name]}
    named = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"): (body, part)
        for body in reversed(sections.values())
        for heading, part in re.findall(r"^### (.+)\n((?:(?!###).*\n?)*)", body, flags=re.MULTILINE)
    } | {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): (body, body) for title, body in sections.items()}
    body, part = named[anchor]
    assert figure in part
    assert processor in " ".join(body.split("\n\n")[0].split()), "the machine stands with the command"


@pytest.mark.parametrize("name", FILES)
def test_what_a_page_says_by_hand_stands_in_its_tables(name: str) -> None:
    front, _, rest = (FOLDER / name).read_text(encoding="utf-8").partition("\n## ")
    interval = r"(?: [\[(][\d.]+(?:, | \.\. | to )[\d.]+[\])])?"
    figures = re.findall(rf"\b\d+\.\d+{interval}", " ".join(front.split()))
    assert [figure for figure in figures if figure not in " ".join(rest.split())] == []


# What must not change when a table is cut: every cell of a row.
WIDE = [
    {"batch": "1", "arm": f"arm {i}", "same": "40/40", **{f"column {n}": f"{i}.{n}" * 4 for n in range(9)}}
    for i in range(3)
]


def test_a_wide_table_is_cut_between_columns_and_keeps_every_cell() -> None:
    said, *parts = narrow(WIDE)
    assert said == "In every row: batch: 1; same: 40/40."
    assert len(parts) == 2
    assert all(len(line) <= WIDTH for part in parts for line in part.splitlines())
    rows = [[row for table in tables_in(part) for row in table] for part in parts]
    for row, *cut in zip(WIDE, *rows, strict=True):
        joined = {name: cell for piece in cut for name, cell in piece.items()}
        assert {**joined, "batch": "1", "same": "40/40"} == row
        assert all(next(iter(piece)) == "arm" for piece in cut)


def test_as_many_columns_as_tell_rows_apart_begin_each_part() -> None:
    rows = [{**row, "arm": "one", "batch": str(i // 2), "turn": str(i % 2)} for i, row in enumerate([*WIDE, WIDE[0]])]
    ordered = [{"batch": row["batch"], "turn": row["turn"], **row} for row in rows]
    _, *parts = narrow(ordered)
    assert [list(tables_in(part)[0][0])[:2] for part in parts] == [["batch", "turn"]] * len(parts)


def test_a_text_that_fits_nowhere_gets_a_number_and_stands_below() -> None:
    long = "a pass took longer than it was predicted to take; " * 3
    rows = [{"arm": str(i), "figure": "1.5", "why": long if i else "-"} for i in range(3)]
    *_, part, notes = narrow(rows)
    assert [row["why"] for row in tables_in(part)[0]] == ["-", "(1)", "(1)"]
    assert " ".join(notes.split()) == f"- (1) {long.strip()}"


def test_a_table_that_fits_stays_as_it_is() -> None:
    printed = "| arm | same |\n| --- | ---- |\n| a   | 1    |\n| b   | 1    |"
    assert lay_out(printed) == printed


def test_what_the_page_says_before_is_not_said_again() -> None:
    front = "- Why: v: a pass;\n  c: a draft."
    assert lay_out("Why: v: a pass; c: a draft. It ran\nhere.", front) == "Why, as above: It ran here."
    assert lay_out("Why: v: a pass; c: a draft.", front) == "Why, as above:"
    section = Table("", [{"v": 1.0, "c": 2.0}], legend={"v": "a pass", "c": "a draft"}).section()
    assert lay_out(section, f"- {section.splitlines()[0]}").startswith("Columns, as above:\n\n| v")
    assert lay_out("Written: runs/a\nPictures and JSON: runs/a") == ""


def test_a_section_is_replaced_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "trees.md").write_text("# Trees\n\nBy hand.\n\n## Trees by shape and size\n\nold\n", encoding="utf-8")
    write_section("Trees by shape and size, sampled", "third", tmp_path)
    write_section("Trees by shape and size", "first", tmp_path)
    assert (tmp_path / "trees.md").read_text(encoding="utf-8") == (
        "# Trees\n\nBy hand.\n\n## Trees by shape and size\n\nfirst\n\n## Trees by shape and size, sampled\n\nthird\n"
    )


def test_a_new_file_has_the_title_of_its_first_section(tmp_path: Path) -> None:
    title = "Draft lengths that follow confidence"
    write_section(f"{title}, sampled", "new", tmp_path)
    (text,) = (page.read_text(encoding="utf-8") for page in tmp_path.iterdir())
    assert text.startswith(f"# {title}\n\n## {title}, sampled\n")


def test_a_file_leaves_out_the_tables_that_it_names(tmp_path: Path) -> None:
    printed = "First.\n\n### Speed\n\nfast\n\n### Stages\n\nmany\n\n### Work\n\nmuch"
    for name, title in (("every-strategy.md", "Every strategy, greedy"), ("trees.md", "Trees by shape and size")):
        write_section(title, printed, tmp_path)
        kept = (tmp_path / name).read_text(encoding="utf-8")
        assert ("Stages" in kept) == (name == "trees.md")
        assert [word in kept for word in ("First.", "fast", "much")] == [True] * 3
    titles = {
        title for name, left in LEFT_OUT.items() for title in left if f"### {title}\n" in (FOLDER / name).read_text()
    }
    assert not titles


def test_make_real_measures_what_the_benchmarks_say_of_smollm2() -> None:
    recipe = (FOLDER.parent / "Makefile").read_text(encoding="utf-8").partition("\nreal: ")[2].partition("\n\n")[0]
    joined = " ".join(recipe.replace("\\\n", " ").split())
    assert COMMANDS["SmolLM2 on conversations"].removeprefix("python") in joined
