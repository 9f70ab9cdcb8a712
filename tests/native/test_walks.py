"""Native walks: what the general way decides of drafts whose laws are points, and no word where that one complains."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import PromptLookup
from oracles.tabular import TabularLM
from specdec import SpeculativeDecoder
from specdec.contracts import NEVER, Budget, Draft, Offers, Scores, Tree
from specdec.engine import verdict as verdicts
from specdec.engine.outcome import StepOutcome
from specdec.kernels import best_kernels
from specdec.kernels.compiled import NATIVE_DTYPES, Fault, PackedDrafts
from specdec.verify import resolve_rule
from tests.support.backends import judged_by_rules, needed_kernels
from tests.support.drafting.judged_steps import ORACLE, SOURCE, check, frame_of

RULE = resolve_rule("multi_draft")
FORMS = ("chains", "chains with scouts", "trees", "trees with scouts", "trees of two sources")

needed_kernels()


def drafted(form: str, generator: np.random.Generator, batch: int, width: int) -> tuple[Draft, Scores]:
    """Return ragged drafts over few ids, many of which the target says too, and what it says."""
    ids = torch.from_numpy(generator.integers(0, 4, (batch, width + 1)))
    parents = None
    if "trees" in form:
        above = [[int(generator.integers(-1, node)) for node in range(width)] for _ in range(batch)]
        parents = torch.tensor(above, dtype=torch.int64).reshape(batch, width)
    before = torch.arange(width).expand(batch, width) if parents is None else parents + 1
    said = torch.from_numpy(generator.random((batch, width)) < 0.7)
    tokens = torch.where(said, ids.gather(1, before), torch.from_numpy(generator.integers(0, 4, (batch, width))))
    scouts = None
    if "scouts" in form:
        scouts = torch.from_numpy(generator.random((batch, width)) < 0.2)
        for node in range(width):  # no verified node stands below a scout
            below = scouts.gather(1, (before[:, node : node + 1] - 1).clamp(min=0)) & (before[:, node : node + 1] > 0)
            scouts[:, node] |= below[:, 0]
    two = "two sources" in form
    source = torch.from_numpy(generator.integers(0, 2, (batch, width))) if two else None
    num_nodes = torch.from_numpy(generator.integers(0, width + 1, batch))
    draft = Draft(tokens, num_nodes, parents, is_scout=scouts, source=source, source_names=("a", "b") if two else ())
    peaks = torch.from_numpy(generator.random((batch, width + 1)))
    return draft, Scores(None, likeliest=(ids, peaks))


def verdict_of(draft: Draft, scores: Scores, frame: Any) -> StepOutcome:
    nodes = draft.after(np.zeros(len(draft.tokens), dtype=np.int64))
    verify = verdicts.Verifier(ORACLE, SOURCE, RULE, best_kernels())
    return verify(draft, nodes, scores, frame, verify.pack(draft, nodes, frame))


def both_ways(
    draft: Draft, scores: Scores, frame: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[StepOutcome, StepOutcome]:
    """Return what compiled code makes of drafts, and what the general way does."""
    with monkeypatch.context() as patch:
        patch.setattr(verdicts.Verifier, "_by_the_rule", lambda *_: pytest.fail("compiled code had no word"))
        native = verdict_of(draft, scores, frame)
    with judged_by_rules():
        return native, verdict_of(draft, scores, frame)


def both_ways_fail(draft: Draft, scores: Scores, frame: Any) -> None:
    """Raise the error that compiled code leads to, if the general way raises the same."""
    with judged_by_rules(), pytest.raises((ValueError, FloatingPointError)) as general:
        verdict_of(draft, scores, frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts.Verifier, "_by_the_rule", lambda *_: pytest.fail("the work was done twice"))
        with pytest.raises(type(general.value)) as native:
            verdict_of(draft, scores, frame)
    assert str(native.value) == str(general.value)
    raise native.value


@pytest.mark.parametrize("form", FORMS)
def test_walks_are_those_of_the_general_way(form, monkeypatch):
    generator = np.random.default_rng(FORMS.index(form))
    accepted, endings = set(), set()
    for case in range(60):
        batch, width = int(generator.integers(1, 6)), case % 7
        draft, scores = drafted(form, generator, batch, width)
        native, general = both_ways(draft, scores, frame_of(batch), monkeypatch)
        check(native, general)
        accepted.update(native.num_accepted.tolist())
        endings.update(native.endings.tolist())
    assert accepted >= {0, 1, 2}
    assert endings == {0, 1}


@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
def test_padding_may_hold_anything_but_parents(dtype, monkeypatch):
    draft, scores = drafted("trees", np.random.default_rng(9), 4, 5)
    draft = replace(draft, num_nodes=torch.tensor([0, 2, 3, 5]))
    ids, peaks = scores.best
    peaks = peaks.to(dtype)
    peaks[torch.arange(6) > draft.num_nodes.unsqueeze(1)] = float("nan")
    check(*both_ways(draft, Scores(None, likeliest=(ids, peaks)), frame_of(4), monkeypatch))


Broken = Callable[[Draft], Draft]


def with_node(name: str, value: int) -> Broken:
    """Return what gives the last node of the last row another value."""

    def broken(draft: Draft) -> Draft:
        numbers = getattr(draft, name).clone()
        numbers[-1, -1] = value
        return replace(draft, **{name: numbers})

    return broken


def below_a_scout(draft: Draft) -> Draft:
    scouts = torch.zeros_like(draft.tokens, dtype=torch.bool)
    scouts[-1, -2] = True
    parents = draft.parents.clone()
    parents[-1, -1] = draft.width - 2
    return replace(draft, is_scout=scouts, parents=parents)


FAULTS: dict[str, tuple[Broken, str]] = {
    "too many nodes": (lambda d: replace(d, num_nodes=d.num_nodes + 1), r"num_nodes must lie in 0\.\.5"),
    "fewer than none": (lambda d: replace(d, num_nodes=d.num_nodes - 6), r"num_nodes must lie in 0\.\.5"),
    "a parent of its own": (with_node("parents", 4), "a parent, of padding too, must be -1 or a smaller index"),
    "a parent before all": (with_node("parents", -2), "a parent, of padding too, must be -1 or a smaller index"),
    "another source": (with_node("source", 2), r"source must lie in 0\.\.1"),
    "a negative source": (with_node("source", -1), r"source must lie in 0\.\.1"),
    "verified below a scout": (below_a_scout, "a verified node hangs on a scout"),
}


def whole(form: str = "trees of two sources") -> tuple[Draft, Scores]:
    draft, scores = drafted(form, np.random.default_rng(4), 3, 5)
    return replace(draft, num_nodes=torch.full((3,), 5)), scores


@pytest.mark.parametrize("fault", FAULTS)
def test_both_ways_name_a_fault_alike(fault, monkeypatch):
    draft, scores = whole()
    check(*both_ways(draft, scores, frame_of(3), monkeypatch))
    breaks, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        both_ways_fail(breaks(draft), scores, frame_of(3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_peak_that_is_not_finite_is_told(value):
    draft, scores = whole("chains")
    ids, peaks = scores.best
    peaks[1, 5] = value
    with pytest.raises(FloatingPointError, match="request 1: the oracle's logits at node 5"):
        both_ways_fail(draft, Scores(None, likeliest=(ids, peaks)), frame_of(3))


def test_a_models_undefined_logits_are_told():
    draft, scores = whole()
    undefined = torch.full((3, 2), NEVER)
    verdict_of(replace(draft, undefined=undefined), scores, frame_of(3))
    undefined[2, 1] = 4
    with pytest.raises(FloatingPointError, match="request 2: the model of 'b' gave logits"):
        both_ways_fail(replace(draft, undefined=undefined), scores, frame_of(3))


@pytest.mark.parametrize("form", ["chains", "trees"])
def test_budgets_are_kept_to_the_node(form, monkeypatch):
    draft, scores = whole(form)
    deepest = 5 if draft.parents is None else int(draft.tree.depth.max())
    check(*both_ways(draft, scores, frame_of(3, depth=deepest, nodes=5), monkeypatch))
    for limits in ({"depth": deepest - 1}, {"nodes": 4}):
        with pytest.raises(ValueError, match="over the budget"):
            both_ways_fail(draft, scores, frame_of(3, **limits))


# By the field of a structure: what of a call's arguments becomes shorter, and how.
SHORTER: dict[str, Callable[[Draft, Tree, Budget, Any], tuple[Any, ...]]] = {
    "sizes": lambda draft, nodes, budget, end: (draft, replace(nodes, num_nodes=nodes.num_nodes[:1]), budget, end),
    "parents": lambda draft, nodes, budget, end: (draft, replace(nodes, parents=nodes.parents[:1]), budget, end),
    "sources": lambda draft, nodes, budget, end: (replace(draft, source=draft.source[:1]), nodes, budget, end),
    "scouts": lambda draft, nodes, budget, end: (replace(draft, is_scout=draft.is_scout[:1]), nodes, budget, end),
    "undefined": lambda draft, nodes, budget, end: (replace(draft, undefined=draft.undefined[:1]), nodes, budget, end),
    "max_depth": lambda draft, nodes, budget, end: (draft, nodes, replace(budget, max_depth=budget.max_depth[:1]), end),
    "ignores_eos": lambda draft, nodes, budget, end: (draft, nodes, budget, end[:1]),
}


@pytest.mark.parametrize("name", SHORTER)
def test_arrays_of_other_sizes_are_refused_before_the_call(name):
    walks, (draft, scores) = needed_kernels().walks, whole()
    assert walks is not None
    nodes, ends = draft.after(np.zeros(3, dtype=np.int64)), np.zeros(3, dtype=np.bool_)
    draft = replace(draft, is_scout=torch.zeros(3, 5, dtype=torch.bool), undefined=torch.full((3, 2), NEVER))
    ids, peaks = (tensor.numpy() for tensor in scores.best)
    nothing, budget = (Budget(np.full(3, n), np.full(3, n)) for n in (0, 9))

    def judged(limits: Budget, num_ids: int = 3) -> None:
        packed = PackedDrafts(walks, draft, nodes, limits, ends)
        packed.take(ids[:num_ids], peaks)
        packed.draw()

    with pytest.raises(ValueError, match="call take first"):
        PackedDrafts(walks, draft, nodes, budget, ends).draw()
    with pytest.raises(Fault, match="BUDGET in row 0, node"):
        judged(nothing)
    judged(budget)
    shorter = SHORTER[name](draft, nodes, budget, ends)
    with pytest.raises(ValueError, match=rf"Drafts\.{name} has the shape"):
        PackedDrafts(walks, *shorter)
    with pytest.raises(ValueError, match=r"Drafts\.ids has the shape"):
        judged(budget, 1)


def test_budgets_are_int64_whatever_a_source_declares():
    @dataclass
    class Small(PromptLookup):
        def __post_init__(self) -> None:
            super().__init__(2)

        @property
        def offers(self) -> Offers:
            return replace(super().offers, max_nodes=np.int8(2))

    oracle = TabularLM.random(5, 2, seed=0)
    found = SpeculativeDecoder(oracle, Small()).generate([[1, 2, 1, 2]] * 9, max_new_tokens=8)
    assert found.tokens == SpeculativeDecoder(oracle).generate([[1, 2, 1, 2]] * 9, max_new_tokens=8).tokens


def test_what_compiled_code_cannot_read_goes_the_general_way():
    draft, scores = whole("chains")
    ids, peaks = scores.best
    wanted = verdict_of(draft, scores, frame_of(3))
    for likeliest in ((ids, peaks.half()), (ids.t().contiguous().t(), peaks)):
        check(verdict_of(draft, Scores(None, likeliest=likeliest), frame_of(3)), wanted)
