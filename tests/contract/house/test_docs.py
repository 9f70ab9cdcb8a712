"""What the documentation names exists, what exists is findable in it, and its tables fit."""

import configparser
import re

import pytest

from exactspec.listing import module_of
from experiments.bench.benchmark_figures import WIDTH
from experiments.bench.sections import COMMANDS
from experiments.strategies import STRATEGIES
from tests.support.pages import BENCHMARKS, DOCS, PAGES, ROOT

INDEX = DOCS / "strategies" / "README.md"
PACKAGES = ("exactspec", "specdec", "drafts", "oracles", "experiments")
MAP = (DOCS / "internals" / "house.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_load_nothing_from_elsewhere(picture):
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.count("xmlns=") == drawn.count('xmlns="http://www.w3.org/2000/svg"')
    assert not re.findall(r"@import|@font-face|<image|<script|<foreignObject|href=|url\((?!#)", drawn)


def on_pages(pattern: str) -> set[tuple[str, str]]:
    """Return what the pages say that matches, each with its page."""
    read = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    return {(name, found) for name, text in read.items() for found in re.findall(pattern, text, flags=re.MULTILINE)}


def test_commands_are_scripts():
    modules = on_pages(r"python -m ((?:experiments|oracles)\.[a-z0-9_.]*[a-z0-9_])")
    assert [(page, module) for page, module in modules if not is_script(module)] == []


def test_commands_are_listed():
    named = on_pages(r"(?:`|^\$ )exactspec (\w[\w-]*)")
    assert [(page, name) for page, name in named if module_of(name) is None] == []


def rows_of(text: str) -> list[str]:
    """Return the rows of a page's tables without the targets of links; what stands in code is no table."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^[> ]*\|.*$", re.sub(r"\]\([^)]*\)", "]", prose), flags=re.MULTILINE)


def test_no_row_of_a_table_is_too_wide():
    """A table of sentences is a list; of bugs and the tests that catch them there is one wide table."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *BENCHMARKS.rglob("*.md")]
    rows = [(page.relative_to(ROOT).as_posix(), row) for page in pages for row in rows_of(page.read_text("utf-8"))]
    assert len(rows) > 2000, "the pattern finds what it looks for"
    widest = {"docs/internals/pitfalls.md": 400}
    assert [(name, row) for name, row in rows if len(row) > widest.get(name, WIDTH)] == []


def is_script(module: str) -> bool:
    """Tell whether a module, or a package with a ``__main__``, is there to be run."""
    place = ROOT / module.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def test_pages_and_messages_name_our_distribution_and_no_other_with_extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras, own = setup["options.extras_require"], setup["metadata"]["name"]
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    found = [
        (path.name, *name_and_extra)
        for path in [*PAGES, *sources]
        for name_and_extra in re.findall(r"pip install '([\w./-]+)\[(\w+)\]'", path.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 10, "the pattern finds what it looks for"
    assert [one for one in found if one[1] not in (own, ".", "/path/to/checkout") or one[2] not in extras] == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_a_script_and_a_page(name):
    assert (ROOT / "experiments" / f"{name}.py").is_file()
    rows = re.findall(rf"^\| \[`{name}`\]\((\w+\.md)\) \|", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == 1, f"give {name} one row in {INDEX.relative_to(ROOT)}: | [`{name}`](ITS_PAGE.md) | ..."
    assert f"experiments.{name}" in (INDEX.parent / rows[0]).read_text(encoding="utf-8")


def test_the_index_links_every_page():
    linked = set(re.findall(r"\]\((\w+\.md)\)", INDEX.read_text(encoding="utf-8")))
    assert linked == {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name}


def folders_of(section: str) -> list[str]:
    """Return the folders that the first cells of a table of the map name."""
    cells = re.findall(r"^\| (`.+?) \|", section, flags=re.MULTILINE)
    return [name.rstrip("/") for cell in cells for name in re.findall(r"`([\w/]+/)`", cell)]


def test_the_map_has_one_row_for_each_package_and_none_for_what_is_not_there():
    tops, rooms, others = re.split(r"^## The rooms of .*$", MAP, flags=re.MULTILINE)
    shown = [*folders_of(tops), *(f"specdec/{name}" for name in folders_of(rooms)), *folders_of(others)]
    there = {path.parent.relative_to(ROOT).as_posix() for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")}
    assert sorted(shown) == sorted({*there, "tests"})


@pytest.mark.parametrize("top", [*PACKAGES, "tests"])
def test_a_file_says_in_its_first_line_what_it_holds(top):
    begins = {".py": '"""', ".h": "// ", ".cpp": "// "}
    files = [path for path in (ROOT / top).rglob("*") if path.suffix in begins]
    said = {path: path.read_text(encoding="utf-8") for path in files if top != "tests" or path.stat().st_size}
    silent = [path for path, text in said.items() if not re.match(begins[path.suffix] + r"[\w`].{15}", text)]
    assert silent == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/internals/house.md", "docs/internals/golden.md"])
def test_pages_for_those_who_change_the_code_name_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:specdec|drafts|oracles|experiments|tests|docs)/[\w/]*(?:\.\w+)?)`", text)
    assert len(named) > 3 or page.endswith("golden.md"), "the pattern finds what it looks for"
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_citation_is_of_this_version():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    said = dict(
        re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    own = setup["metadata"]
    assert (said["version"], said["license"]) == (own["version"], own["license"])
    assert said["title"].startswith(f'"{own["name"]}: ')


def test_benchmarks_run_scripts():
    scripts = [command.split()[2] for command in COMMANDS.values()]
    assert [name for name in scripts if not is_script(name)] == []
