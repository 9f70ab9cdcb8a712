"""Whatever is exported runs through the common tests: a source, policy, shape or rule without its row fails here."""

from types import ModuleType
from typing import Any

import pytest

import drafts
from specdec import verify as rules
from specdec.drafting import lengths as draft_length
from specdec.drafting import shapes
from specdec.drafting.lengths import Fixed, LengthPolicy
from specdec.drafting.shapes import Level, TreeShape
from specdec.verify import RULES
from tests.support.registry import OTHERS, POLICIES, SHAPES, SOURCES


def classes_of(package: ModuleType) -> set[Any]:
    """Return the classes that a package exports."""
    return {one for one in (getattr(package, name) for name in package.__all__) if isinstance(one, type)}


def test_every_exported_source_has_a_row():
    assert set(SOURCES) | set(OTHERS) == set(drafts.__all__)


@pytest.mark.parametrize("column", [0, 1], ids=["long", "short"])
def test_every_exported_policy_has_a_row(column):
    policies = {one for one in classes_of(draft_length) if LengthPolicy in one.__mro__}
    assert policies - {LengthPolicy, Fixed} == {type(row[column]) for row in POLICIES.values()}


@pytest.mark.parametrize("column", [0, 1], ids=["small", "large"])
def test_every_exported_shape_has_a_row(column):
    exported = classes_of(shapes) - {TreeShape, Level}
    assert {one.__name__ for one in exported} == set(SHAPES)
    assert exported == {type(row[column]) for row in SHAPES.values()}


def test_every_exported_rule_is_in_the_registry():
    exported = {one for one in classes_of(rules) if hasattr(one, "lossless")}
    listed = {type(rule) for rule in RULES.values()}
    assert exported <= listed, "add them to _ALL in specdec/verify/registry.py"
    assert listed <= exported, "export them in specdec/verify/__init__.py: an import, and a line of __all__"
    assert all(rule.name == name for name, rule in RULES.items())
