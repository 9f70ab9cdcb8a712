"""Drafts and scores made of arrays: what they are as tensors, and that a greedy step of the host makes none."""

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from drafts import NGram, PromptLookup, SmallTransformer
from oracles.native import NativeTransformer
from oracles.transformer.eager import Transformer
from specdec import Kary, Oracle, SamplingParams, SpeculativeDecoder
from specdec.contracts import (
    Draft,
    DraftSource,
    IntArray,
    NodeArrays,
    ScoreArrays,
    Scores,
    Takes,
    form_fault,
    taken_by,
    takes,
)
from specdec.laws import Laws
from tests.support.backends import judged_by_rules, needed_kernels, needed_native
from tests.support.models import tiny_transformer
from tests.support.registry import SIX_IDS

PROMPTS = [[1, 2, 3, 1, 2], [0, 1]]
IDS, COUNTS = np.array([[1, 2, 3], [4, 5, 0]]), np.array([3, 2])
ABOVE = np.array([[-1, -1, 0], [-1, 0, -1]])


class Tensors(TorchFunctionMode):
    """Count the functions and methods of torch that are called, reading a shape or address among them.

    Args:
        patch: counts too what numpy's arrays become.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls: list[str] = []
        from_numpy = torch.from_numpy

        def counted(array: IntArray) -> torch.Tensor:
            self.calls.append("from_numpy")
            return from_numpy(array)

        patch.setattr(torch, "from_numpy", counted)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def calls_of_steps(
    oracle: Oracle, source: DraftSource | None, patch: pytest.MonkeyPatch, temperature: float = 0.0
) -> list[str]:
    """Return what is called of torch in five steps of a run, after those that prefill and work out what is kept."""
    decoder = SpeculativeDecoder(oracle, source, rule="multi_draft")
    state, _ = decoder.step(decoder.start(PROMPTS, 99, SamplingParams(temperature)))
    state, _ = decoder.step(state)
    with patch.context() as patched, Tensors(patched) as tensors:
        for _ in range(5):
            state, info = decoder.step(state)
            assert info.num_emitted.min() > 0
    return tensors.calls


def sources(kind: Callable[..., Any]) -> dict[str, DraftSource | None]:
    return {
        "plain": None,
        "lookup": PromptLookup(),
        "n-grams": NGram(SIX_IDS.ngrams),
        "chain": SmallTransformer(tiny_transformer(6, torch.float32, 2, kind)),
        "tree": SmallTransformer(tiny_transformer(6, torch.float32, 2, kind), tree=Kary(width=2, depth=2)),
    }


@pytest.mark.parametrize("name", ["plain", "lookup", "n-grams", "chain", "tree"])
def test_a_greedy_step_of_the_host_makes_no_tensor(name, monkeypatch):
    needed_native()
    needed_kernels()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    assert calls_of_steps(oracle, sources(NativeTransformer)[name], monkeypatch) == []


# Whole trees share one tensor that says whose elder siblings were removed from the laws: it is looked at.
LOOKS = {"__get__", "is_contiguous", "data_ptr"}


@pytest.mark.parametrize(("name", "allowed"), [("plain", set()), ("lookup", set()), ("chain", set()), ("tree", LOOKS)])
def test_a_sampled_step_of_the_host_makes_no_tensor(name, allowed, monkeypatch):
    needed_native()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    calls = calls_of_steps(oracle, sources(NativeTransformer)[name], monkeypatch, temperature=1.0)
    assert set(calls) <= allowed


@pytest.mark.parametrize("name", ["plain", "lookup", "n-grams", "chain", "tree"])
def test_another_oracle_is_given_tensors(name, monkeypatch):
    oracle = tiny_transformer(6, torch.float32, 1, Transformer.pack)
    assert "from_numpy" in calls_of_steps(oracle, sources(Transformer.pack)[name], monkeypatch)


class Wrapped:
    """An oracle in another one's clothes; ``kinds``: of the ids that its ``score`` was given in steps."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.kinds = oracle, set[type]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.oracle, name)

    def score(self, tokens, *args, **named):
        self.kinds.add(type(tokens))
        return self.oracle.score(tokens, *args, **named)


class WrappedForArrays(Wrapped):
    @takes(Takes.ARRAYS)
    def score(self, *args, **named):
        return super().score(*args, **named)


@pytest.mark.parametrize(("wrapper", "kind"), [(Wrapped, torch.Tensor), (WrappedForArrays, np.ndarray)])
def test_who_wraps_an_oracle_is_given_tensors_unless_it_takes_arrays(wrapper, kind):
    needed_native()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    wrapped = wrapper(oracle)
    decoder = SpeculativeDecoder(wrapped, PromptLookup())
    state, _ = decoder.step(decoder.start(PROMPTS, max_new_tokens=20))
    wrapped.kinds.clear()
    while state.has_work:
        state, _ = decoder.step(state)
    assert wrapped.kinds == {kind}
    assert decoder.finish(state).tokens == SpeculativeDecoder(oracle).generate(PROMPTS, max_new_tokens=20).tokens


def test_an_overridden_score_is_given_tensors():
    needed_native()

    class Overriding(NativeTransformer):
        def score(self, *args, **named):
            return super().score(*args, **named)

    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    assert taken_by(oracle) is Takes.ARRAYS
    assert taken_by(tiny_transformer(6, torch.float32, 1, Overriding)) is Takes.TENSORS

    class Wrapping(NativeTransformer):
        @functools.wraps(NativeTransformer.score)
        def score(self, tokens, *args, **named):
            return super().score(tokens.clone(), *args, **named)

    wrapping = tiny_transformer(6, torch.float32, 1, Wrapping)
    assert taken_by(wrapping) is Takes.TENSORS
    assert (
        SpeculativeDecoder(wrapping).generate(PROMPTS, 5).tokens
        == SpeculativeDecoder(oracle).generate(PROMPTS, 5).tokens
    )
    score = oracle.score
    oracle.score = lambda *args, **named: score(*args, **named)
    assert taken_by(oracle) is Takes.TENSORS


ADJUSTED = (
    SamplingParams(repetition_penalty=5.0),
    SamplingParams(logit_bias={1: 50.0}),
    SamplingParams(temperature=0.8, logit_bias={2: 50.0}),
    SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=9.0),
    SamplingParams(),
    SamplingParams(temperature=1.0),
)


@pytest.mark.parametrize("rule", ["standard", "sample_and_match", "coupled"])
def test_drafts_are_judged_by_adjusted_logits(rule):
    needed_native()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    wanted = ([[1, 2, 3, 1, 2]] * len(ADJUSTED), 30, list(ADJUSTED))
    fast = SpeculativeDecoder(oracle, PromptLookup(), rule=rule).generate(*wanted).tokens
    with judged_by_rules():
        assert SpeculativeDecoder(oracle, PromptLookup(), rule=rule).generate(*wanted).tokens == fast
    assert len(set(map(tuple, fast))) == len(ADJUSTED)


@pytest.mark.parametrize("parents", [None, ABOVE, np.array([[-1, 0, 1]] * 2)], ids=["chains", "trees", "as chains"])
def test_a_draft_of_arrays_is_that_of_tensors(parents):
    above = None if parents is None else torch.from_numpy(parents)
    ours = Draft.of_arrays(IDS, COUNTS, parents)
    theirs = Draft(torch.from_numpy(IDS), torch.from_numpy(COUNTS), above)
    assert ours.is_chain == theirs.is_chain == (parents is not ABOVE)
    assert ours.width == theirs.width == 3
    assert form_fault(ours, 2) is None
    pending = np.array([7, 8])
    for mine, other in zip(ours.after(pending), theirs.after(pending), strict=True):
        assert np.array_equal(mine, other)  # None too
    assert isinstance(ours.after(pending), NodeArrays)
    assert ours.arrays is not None
    assert ours.tokens.dtype == ours.num_nodes.dtype == torch.int64
    assert (ours.parents is None) == (parents is None)
    for made in (ours, replace(ours), ours.to(torch.device("cpu")), ours.spread(np.arange(2), 2)):
        assert above is None or torch.equal(made.parents, above)
        assert torch.equal(made.tokens, theirs.tokens)
        assert torch.equal(made.num_nodes, theirs.num_nodes)
    assert replace(ours).arrays is None
    wider = ours.spread(np.array([2, 0]), 3)
    assert wider.tokens.tolist() == [[4, 5, 0], [0, 0, 0], [1, 2, 3]]
    assert wider.num_nodes.tolist() == [2, 0, 3]
    assert wider.arrays is None


def test_what_else_a_draft_of_arrays_holds_is_kept():
    confidence, undefined = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.int64)
    draft = Draft.of_arrays(IDS, COUNTS, confidence=confidence, undefined=undefined)
    assert draft.confidence is confidence
    assert draft.undefined is undefined
    assert form_fault(draft, 2) is None
    assert "confidence" in (form_fault(Draft.of_arrays(IDS, COUNTS, confidence=confidence[:1]), 2) or "")
    laws = Laws.points(torch.from_numpy(IDS))
    assert form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE, laws, confidence > 0), 2) is None
    assert "laws" in (form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE, laws[:, :2]), 2) or "")
    assert "without_rep" in (form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE, laws, confidence[:, :2] > 0), 2) or "")
    assert "be a tensor, not list" in (form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE, laws, [1]), 2) or "")
    assert "parents" in (form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE[:, :2]), 2) or "")
    assert "int64" in (form_fault(Draft.of_arrays(IDS, COUNTS, ABOVE.astype(np.int32)), 2) or "")
    assert "undefined" in (form_fault(Draft.of_arrays(IDS, COUNTS, undefined=undefined[:1]), 2) or "")


def test_arrays_and_tensors_of_a_draft_share_their_memory():
    whole = np.arange(12).reshape(2, 6)
    for ids in (whole, whole[:, :3], whole[:, ::2]):
        draft = Draft.of_arrays(ids, COUNTS.copy())
        draft.tokens.add_(1)
        draft.num_nodes.sub_(1)
        nodes = draft.after(np.array([7, 8]))
        assert nodes.tokens[:, 1:].tolist() == draft.tokens.tolist()
        assert nodes.num_nodes.tolist() == [3, 2]


def law_arrays() -> Laws:
    table = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=np.float32)
    return Laws.of_arrays(table, np.array([[0, -1], [1, 1]]), np.array([[0, 2], [0, 0]]))


def test_laws_of_arrays_are_those_of_tensors():
    ours, points = law_arrays(), Laws.of_arrays(np.zeros((0, 0)), np.full((1, 2), -1), np.array([[4, 5]]))
    assert ours.arrays is not None
    assert ours.shape == (2, 2)
    assert (ours.all_points, points.all_points) == (False, True)
    theirs = Laws(*map(torch.from_numpy, ours.arrays))
    ids = torch.tensor([[1, 2], [2, 0]])
    for mine, other in ((ours, theirs), (ours[:, 1], theirs[:, 1]), (replace(ours, point=ids), theirs)):
        assert torch.equal(mine.dense(), other.dense())
    assert torch.equal(ours.probs_of(ids), theirs.probs_of(ids))
    assert points.probs_of(torch.tensor([[4, 4]])).tolist() == [[1.0, 0.0]]
    assert ours.to(torch.device("cpu")) is ours
    ours.table[0, 0] = 0.75
    assert ours.arrays[0][0, 0] == 0.75
    assert replace(ours).arrays is None


def test_laws_of_a_dense_array_are_those_of_a_dense_tensor():
    probs = np.random.default_rng(2).random((2, 4, 6), dtype=np.float32)
    for dense in (probs, probs[:, :3], probs[:, :, :5], probs[:, :0]):
        laws = Laws.from_array(dense)
        assert laws.arrays is not None
        assert all(array.flags.c_contiguous for array in laws.arrays)
        assert laws.shape == dense.shape[:2]
        assert torch.equal(laws.dense(), torch.from_numpy(dense.copy()))
    is_law = np.array([[True, True, False, False], [True, True, True, True]])
    some, theirs = Laws.from_array(probs, is_law), Laws.from_probs(torch.from_numpy(probs))
    assert torch.equal(some.dense(), theirs.pointed(torch.from_numpy(~is_law)).dense())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_laws_have_tensors_and_no_arrays(copied):
    ours, theirs = law_arrays(), copied(law_arrays())
    assert type(theirs) is Laws
    assert theirs.arrays is None
    assert torch.equal(theirs.dense(), ours.dense())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_tensors_and_no_arrays(copied):
    draft = copied(Draft.of_arrays(IDS, COUNTS, confidence=torch.ones(2, 3)))
    assert type(draft) is Draft
    assert draft.arrays is None
    assert (draft.tokens.tolist(), draft.num_nodes.tolist()) == (IDS.tolist(), COUNTS.tolist())
    assert draft.confidence.shape == (2, 3)
    logits = np.zeros((2, 3, 5), dtype=np.float32)
    scores = copied(Scores.of_arrays(ScoreArrays(logits, logits.argmax(-1), logits.max(-1))))
    assert type(scores) is Scores
    assert scores.arrays is None
    assert scores.logits.shape == (2, 3, 5)
    assert scores.likeliest[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("ids", "counts", "fault"),
    [
        (IDS.astype(np.int32), COUNTS, "must be int64"),
        (IDS, COUNTS.astype(np.float64), "must be int64"),
        (IDS[:1], COUNTS, r"shapes for 2 rows: .* should be \(2, 3\)"),
        (IDS, COUNTS[:1], r"shapes for 2 rows: .*num_nodes"),
        (IDS[0], COUNTS, "shapes for 2 rows"),
        (IDS[..., None], COUNTS, r"shapes for 2 rows: .* should be \(2, 3\)"),
    ],
)
def test_arrays_that_are_no_chains_are_refused(ids, counts, fault):
    class Wrong(PromptLookup):
        def open(self, *_):
            session = super().open(*_)
            session.propose = lambda *_: Draft.of_arrays(ids, counts)
            return session

    oracle = tiny_transformer(6, torch.float32, 1, Transformer.pack)
    with pytest.raises(ValueError, match=f"draft 'prompt_lookup' is malformed: .*{fault}"):
        SpeculativeDecoder(oracle, Wrong()).generate(PROMPTS, max_new_tokens=9)


def test_lists_are_no_arrays():
    with pytest.raises(TypeError, match=r"expected np\.ndarray"):
        form_fault(Draft.of_arrays(IDS.tolist(), COUNTS), 2)


def test_scores_of_arrays_are_those_of_tensors():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    ids, peaks = logits.argmax(-1), logits.max(-1)
    stream = torch.zeros(2, 3, 4)
    scores = Scores.of_arrays(ScoreArrays(logits, ids, peaks), (stream,))
    assert torch.equal(scores.logits, torch.from_numpy(logits))
    assert [part.tolist() for part in scores.best] == [ids.tolist(), peaks.tolist()]
    assert scores.likeliest is scores.best
    assert scores.hidden == (stream,)
    changed = replace(scores, logits=-scores.logits)
    assert changed.arrays is None
    assert torch.equal(changed.logits, torch.from_numpy(-logits))
    some = scores.gather(np.array([[1], [2]]))
    assert some.logits.shape == (2, 1, 5)
    assert some.best[0].tolist() == [[ids[0, 1]], [ids[1, 2]]]
