"""The committed manifest: it holds what it promises, and the gathered text is read as it says."""

from collections import Counter
from pathlib import PurePosixPath

import pytest

from oracles.factory import corpus
from oracles.factory.corpus.corpus_builder import ALLOWED, FAMILIES, build_manifest
from oracles.factory.corpus.corpus_filters import MAX_FILE_BYTES, MIN_TEXT_BYTES, is_corpus_path, is_stdlib_corpus_path
from oracles.factory.corpus.corpus_reading import wheel_folder
from oracles.factory.corpus.manifest import split_of
from tests.support.texts.corpus_rows import MANIFEST, gathered

PACKAGES = {package.name: package for package in MANIFEST.packages}
NUM_BYTES = sum(entry.num_bytes for entry in MANIFEST.files)


def unit_of(entry: corpus.Entry) -> str:
    """Return what the split of a file hangs on."""
    return entry.module.lstrip("_") if entry.package == corpus.STDLIB else PACKAGES[entry.package].family


def test_manifest_names_every_file_once_in_order() -> None:
    places = [(entry.package, PurePosixPath(entry.path).parts) for entry in MANIFEST.files]
    assert places == sorted(set(places))
    assert len({(entry.package, entry.path) for entry in MANIFEST.files}) == len(places)


def test_there_is_enough_text_and_no_package_rules() -> None:
    assert NUM_BYTES >= 150_000_000
    sizes: Counter[str] = Counter()
    for entry in MANIFEST.files:
        sizes[entry.package] += entry.num_bytes
    assert max(sizes.values()) <= 0.1 * NUM_BYTES


def test_every_package_is_pinned_and_gives_text() -> None:
    assert list(PACKAGES) == sorted(PACKAGES)
    assert {entry.package for entry in MANIFEST.files} == {*PACKAGES, corpus.STDLIB}
    for package in MANIFEST.packages:
        assert package.wheel.endswith(".whl")
        assert package.version in package.wheel
        assert len(package.sha256) == 64


def test_licences_are_permissive() -> None:
    for package in MANIFEST.packages:
        assert set(package.licence.replace(" OR ", " AND ").split(" AND ")) <= ALLOWED, package


def test_splits_are_whole_units_and_cover_the_corpus() -> None:
    units = [{unit_of(entry) for entry in MANIFEST.split(name)} for name in corpus.SPLITS]
    assert all(units)
    assert sum(map(len, units)) == len(set.union(*units))
    assert all(entry.split == split_of(unit_of(entry)) for entry in MANIFEST.files)
    assert sum(len(MANIFEST.split(name)) for name in corpus.SPLITS) == len(MANIFEST.files)


def test_related_packages_share_a_split() -> None:
    for members in FAMILIES.values():
        assert len({entry.split for entry in MANIFEST.files if entry.package in members}) == 1


@pytest.mark.parametrize(("name", "least", "most"), [("dev", 0.02, 0.05), ("test", 0.05, 0.07)])
def test_dev_and_test_are_a_few_percent_of_several_packages(name: str, least: float, most: float) -> None:
    entries = MANIFEST.split(name)
    assert least < sum(entry.num_bytes for entry in entries) / NUM_BYTES < most
    assert len({entry.package for entry in entries}) >= 4


def test_manifest_excludes_what_the_rules_exclude() -> None:
    for entry in MANIFEST.files:
        wanted = is_stdlib_corpus_path if entry.package == corpus.STDLIB else is_corpus_path
        assert wanted(entry.path), entry
        assert MIN_TEXT_BYTES <= entry.num_bytes <= MAX_FILE_BYTES


def test_no_text_stands_twice() -> None:
    assert len({entry.sha256 for entry in MANIFEST.files}) == len(MANIFEST.files)


@gathered
@pytest.mark.parametrize("name", ["dev", "test"])
def test_gathered_text_matches_the_manifest(name: str) -> None:
    sources = corpus.read_split(name)
    assert [source.entry for source in sources] == list(MANIFEST.split(name))
    assert all(len(source.text.encode()) == source.entry.num_bytes for source in sources)


@gathered
@pytest.mark.long
def test_manifest_is_what_the_rules_give() -> None:
    wheels = [wheel_folder() / package.wheel for package in MANIFEST.packages]
    assert build_manifest(wheels, corpus.stdlib_folder())[0] == MANIFEST


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="validation"):
        corpus.read_split("validation")


def test_underscores_do_not_move_a_module() -> None:
    assert all(split_of(f"_{entry.module}") == split_of(entry.module) for entry in MANIFEST.files)
