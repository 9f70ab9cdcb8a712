"""What the documentation names exists, and what exists is findable in it."""

import configparser
import re
from pathlib import Path

import pytest

from exactspec.listing import module_of
from experiments.bench import COMMANDS
from experiments.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "oracles" / "embedded" / "README.md"]
INDEX = ROOT / "docs" / "strategies" / "README.md"
MAP = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if ":" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_load_nothing_from_elsewhere(picture):
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.count("xmlns=") == drawn.count('xmlns="http://www.w3.org/2000/svg"')
    assert not re.findall(r"@import|@font-face|<image|<script|<foreignObject|href=|url\((?!#)", drawn)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_scripts(page):
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m ((?:experiments|oracles)\.[a-z0-9_.]*[a-z0-9_])", text))
    assert [module for module in modules if not is_script(module)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_listed(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^\$ )exactspec (\w[\w-]*)", text, flags=re.MULTILINE))
    assert [name for name in named if module_of(name) is None] == []


def is_script(module: str) -> bool:
    """Tell whether a module, or a package with a ``__main__``, is there to be run."""
    place = ROOT / module.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def test_pages_and_messages_name_our_distribution_and_no_other_with_extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras, own = setup["options.extras_require"], setup["metadata"]["name"]
    sources = [
        path
        for folder in ("exactspec", "specdec", "drafts", "oracles", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    ]
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
    (page,) = re.findall(
        rf"^\| `{name}` \|.*\]\((\w+\.md)\) \|$", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert f"experiments.{name}" in (INDEX.parent / page).read_text(encoding="utf-8")


def test_the_index_links_every_page():
    linked = set(re.findall(r"\]\((\w+\.md)\)", INDEX.read_text(encoding="utf-8")))
    assert linked == {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name}


def row_of(room: Path) -> str:
    """Return the row of the map that shows a room."""
    (row,) = re.findall(
        rf"^\| `{room.name}/` \|.*$", MAP.partition("## The rooms of `specdec/`")[2], flags=re.MULTILINE
    )
    return row


@pytest.mark.parametrize(
    "room", [path.parent for path in (ROOT / "specdec").glob("*/__init__.py")], ids=lambda r: r.name
)
def test_the_map_shows_the_files_of_a_room(room):
    files = {path.name for path in room.glob("*.py")} - {"__init__.py"}
    shown = set(re.findall(r"`(\w+\.py)`", row_of(room)))
    assert shown <= files
    # Where a file holds one thing of a kind, the list in the room's ``__init__.py`` is a map too.
    listed = re.findall(rf"from specdec\.{room.name}\.(\w+) import", (room / "__init__.py").read_text(encoding="utf-8"))
    assert files - shown <= ({f"{name}.py" for name in listed} if " a file" in row_of(room) else set())


def test_the_map_shows_the_ground_floor():
    files = {path.name for path in (ROOT / "specdec").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"^\| `(\w+\.py)` \|", MAP, flags=re.MULTILINE)) == files


def test_the_map_shows_no_other_files():
    named = re.findall(r"`((?:specdec|drafts|oracles|experiments|tests)/[\w/]*\w+\.py)`", MAP)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_benchmarks_run_scripts():
    scripts = [command.split()[2] for command in COMMANDS.values()]
    assert [name for name in scripts if not is_script(name)] == []
