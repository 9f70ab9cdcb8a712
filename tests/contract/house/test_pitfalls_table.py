"""docs/internals/pitfalls.md covers every line, and what it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "internals" / "pitfalls.md").read_text()
ROWS = {row[0]: row for row in re.findall(r"^\| (\d+[a-h]?) \| (.+?) \| (.+?) \| (.+) \|$", TEXT, flags=re.MULTILINE)}
LINES = {
    *(str(number) for number in range(1, 55)),
    *("5a", "5b", "10a", "19a", "24a", "26a", "45a", "45b", "46a", "46b", "46c", "46d", "46e", "46f", "46g", "46h"),
}
MUTANTS = re.findall(r"\bMutant\(\s*\"(\w+)\",", (ROOT / "tests" / "exact" / "engine" / "test_mutants.py").read_text())
WITH_MUTANT = {line for line, row in ROWS.items() if "**mutant" in row[3] and "**mutant** 2" not in row[3]}


def test_every_line_stands_in_the_table_once():
    assert set(ROWS) == LINES
    assert len(re.findall(r"^\| \d+[a-h]? \|", TEXT, flags=re.MULTILINE)) == len(LINES)
    assert {row[2] for row in ROWS.values()} == {"impossible", "caught"}


def test_the_table_and_the_mutants_agree():
    assert set(MUTANTS) == WITH_MUTANT
    assert len(MUTANTS) >= 12


def test_the_tests_that_a_line_names_exist():
    for line in LINES:
        how, status = ROWS[line][3], ROWS[line][2]
        named = re.findall(r"`(\w+\.py)::(\w+)`", how)
        assert how.count(".py::") == len(named), line
        for file, name in named:
            texts = [path.read_text() for path in (ROOT / "tests").rglob(file)]
            assert sum(len(re.findall(rf"^def {name}\(", text, flags=re.MULTILINE)) for text in texts) == 1, (
                file,
                name,
            )
        assert status != "caught" or named or "mutant" in how or "check_draft" in how, line
