"""Links of pages lead to files and headings, and the index leads to every page."""

import re
from pathlib import Path

import pytest

from tests.support.pages import DOCS, GROUPS, PAGES, ROOT


def links_of(text: str) -> list[str]:
    """Return the relative links of a page, in order: what stands in code is no link."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"\w+:", link)]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them; one that comes again has a number."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{n}" if n else anchor for anchor, last in found.items() for n in range(last + 1)}


def lost(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    dead = []
    for link in links_of(text):
        name, _, anchor = link.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors_of(there.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


def test_links_lead_to_a_file_and_its_heading() -> None:
    assert {page: dead for page in PAGES if (dead := lost(page, page.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("link", ["guide/rules.md", "guides/rules.md#no-such-heading", "#nowhere"])
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert lost(DOCS / "README.md", f"# Pages\n\n[one](guides/rules.md), [two]({link})\n") == [link]


def test_code_has_no_links_and_headings_that_come_again_are_numbered() -> None:
    text = "# A `b`, [c](d.md)\n\n```\n# no\n[x](y.md)\n```\n\n# Two\n\n## Two\n"
    assert links_of(text) == ["d.md"]
    assert anchors_of(text) == {"a-b-c", "two", "two-1"}


def test_the_index_has_a_line_for_each_page_in_the_four_groups() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.partition(":")[0].lower() for section in sections] == list(GROUPS)
    for group, section in zip(GROUPS, sections, strict=True):
        shown = re.findall(r"^- \[.+\]\(([^)]+)\): .+[.?]$", section, flags=re.MULTILINE)
        there = {f"{group}/{page.name}" for page in (DOCS / group).glob("*.md")} - {f"{group}/README.md"}
        assert sorted(shown) == sorted(there)


def test_every_page_is_in_a_group() -> None:
    assert {path.name for path in DOCS.iterdir()} == {"README.md", *GROUPS}


def test_files_name_pages_that_exist() -> None:
    """Docstrings, messages and options name pages by their path from the root."""
    sources = [
        path
        for folder in ("specdec", "drafts", "oracles", "experiments", "tests")
        for kind in ("py", "h", "cpp", "md")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    ]
    named = {
        (path.name, page)
        for path in [*sources, *PAGES, ROOT / "Makefile", ROOT / "setup.cfg"]
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.(?:md|svg|png)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10, "the pattern finds what it looks for"
    assert sorted((name, page) for name, page in named if not (ROOT / page).is_file()) == []
