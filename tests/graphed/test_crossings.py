"""Whole runs on a device that is not there: the tokens are those of the CPU, and a step is one copy each way."""

import gc
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import drafts
from oracles.graphed import GraphedTransformer
from specdec import Entropy, Grown, Kary, Paths, ReRanked, SamplingParams, SpeculativeDecoder, Threshold
from specdec.cache import move_kept
from specdec.contracts import DraftSource, StepInfo
from specdec.drafting.assembly import compact, compact_on_device
from specdec.stats import Stats, pool
from specdec.traces import recording
from specdec.transfers import crossings, on_device
from tests.graphed.emulated import CUDA, Emulated, emulated_device
from tests.graphed.heads import block_beside, head_beside
from tests.graphed.pairs import PROMPTS, TOKENS, Pair, moved, pair
from tests.support.pairwise import diagonal, first_of
from tests.support.registry import rotation
from tests.support.texts.grammars import pieces_of

SAMPLED = SamplingParams(temperature=0.8, top_k=12, top_p=0.9, min_p=0.01)
ASKED = {
    "greedy": None,
    "sampled": SAMPLED,
    "mixed": [SAMPLED, SamplingParams(), SamplingParams(temperature=1.3), SamplingParams(temperature=0.5, top_p=0.8)],
}


NGRAMS = drafts.NGram.train([[1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 7, 8, 9, 5, 5, 5]], 23, progress=False).model
POINTS: dict[str, Callable[[], DraftSource | None]] = {
    "plain": lambda: None,
    "lookup": lambda: drafts.PromptLookup(4),
    "adaptive lookup": lambda: drafts.PromptLookup(length=Threshold(threshold=0.5, max_draft_tokens=4)),
    "ngram": lambda: drafts.NGram(NGRAMS, 4),
    "stateless": lambda: drafts.stateless(num_draft_tokens=3)(rotation),
    "lookahead": lambda: drafts.Lookahead(window=4, ngram=3, guesses=3),
    "merged": lambda: drafts.Merged([drafts.PromptLookup(3), drafts.NGram(NGRAMS, 3)]),
    "cascade": lambda: drafts.Cascade([drafts.PromptLookup(3, min_ngram=2), drafts.NGram(NGRAMS, 3)]),
}


@pytest.fixture(autouse=True)
def _uncounted(monkeypatch):
    """Weights are counted by where they lie, and those of the emulated device lie nowhere."""
    monkeypatch.setattr(GraphedTransformer, "weight_bytes", 0)


@dataclass(frozen=True)
class Step:
    """What a step was seen to do, and what it tells."""

    up: int
    down: int
    waits: dict[str, int]
    info: StepInfo

    @property
    def seen(self) -> tuple[int, int, dict[str, int]]:
        return self.up, self.down, self.waits

    @property
    def longest(self) -> int:
        """Tokens of the longest draft."""
        return int(self.info.num_drafted.max())

    @property
    def inner_steps(self) -> int:
        return sum(stage.passes for stage in self.info.stages)


Seen = list[Step]


def steps_of(device: Emulated | None, models: Pair, draft: DraftSource | None, **asked: Any) -> tuple[Any, Seen]:
    """Return the outputs of a run, and what each step that seated nobody was seen to do."""
    rule = asked.pop("rule", "sample_and_match")
    decoder = SpeculativeDecoder(models.target, draft, rule, max_cache_bytes=10**9)
    state, seen = decoder.start(PROMPTS, asked.pop("tokens", TOKENS), **asked), []
    while state.has_work:
        seats = bool(state.slots.waiting) or state.slots.has_new
        if device is not None:
            device.reset()
        state, info = decoder.step(state)
        if device is not None and not seats:
            seen.append(Step(*device.seen, info))
        assert info.logprobs is None or np.isfinite(info.logprobs[:, 0]).all()
    return state.outputs, seen


def runs(make: Callable[[Pair], DraftSource | None], **asked: Any) -> tuple[Any, Any, Seen]:
    """Return the outputs of a run on the CPU and on the device, and what its steps did there."""
    models = pair()
    here, _ = steps_of(None, models, make(models), **asked)
    with emulated_device() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda place: (10**10, 10**10))
        models = pair(moved)
        there, seen = steps_of(device, models, make(models), **asked)
    assert len(seen) > 5
    return here, there, seen


WAYS = [("greedy", "multi_draft"), ("sampled", "sample_and_match"), ("sampled", "multi_draft"), ("mixed", "coupled")]


@diagonal({"source": tuple(POINTS), "asked, rule": WAYS})
def test_a_step_of_point_masses_is_one_copy_each_way(source, asked, rule):
    here, there, seen = runs(lambda models: POINTS[source](), sampling=ASKED[asked], rule=rule)
    assert there == here
    assert {str(step.seen) for step in seen} == {"(1, 1, {})"}


@pytest.mark.parametrize("asked", first_of("mixed", "greedy", "sampled"))
def test_so_is_one_of_chains_under_the_standard_rule(asked):
    here, there, seen = runs(lambda models: drafts.PromptLookup(4), sampling=ASKED[asked], rule="standard")
    assert there == here
    assert {str(step.seen) for step in seen} == {"(1, 1, {})"}


@diagonal({"source": ("plain", "lookup", "lookahead"), "asked": tuple(ASKED)})
def test_so_is_one_that_tells_log_probabilities(source, asked):
    here, there, seen = runs(lambda models: POINTS[source](), sampling=ASKED[asked], return_logprobs=True)
    assert there == here
    assert {str(step.seen) for step in seen} == {"(1, 1, {})"}


# Copies to the device and back, of a step in which every row drafts: as docs/internals/cuda.md says.
DRAWN: dict[str, tuple[Callable[[Pair], DraftSource], tuple[int, int]]] = {
    "three tokens of a model": (lambda models: drafts.SmallTransformer(models.model, 3), (4, 1)),
    "three tokens of the first layer": (lambda models: drafts.EarlyExit(models.target, 1, num_draft_tokens=3), (5, 1)),
    "n-grams, drawn": (lambda models: drafts.NGram(NGRAMS, 3, sampled=True), (2, 1)),
    "a tree of a model": (lambda models: drafts.SmallTransformer(models.model, tree=Kary(2, 2)), (3, 1)),
    "a tree of a model given by its paths": (
        lambda models: drafts.SmallTransformer(models.model, tree=Paths([(0, 0, 0), (1, 0), (2,)])),
        (4, 1),
    ),
    "a tree of a model that grows": (lambda models: drafts.SmallTransformer(models.model, tree=Grown(4, 2, 2)), (5, 3)),
    "lookahead among others": (
        lambda models: drafts.Merged([drafts.PromptLookup(3), drafts.Lookahead(4, 3, 3)]),
        (2, 1),
    ),
    "a tree of a model that is re-ranked": (
        lambda models: drafts.SmallTransformer(models.model, tree=ReRanked(6, 3, 2), temperature=0),
        (5, 3),
    ),
    "a tree of n-grams": (lambda models: drafts.NGram(NGRAMS, tree=Kary(2, 2)), (1, 1)),
    "a tree of n-grams, drawn": (lambda models: drafts.NGram(NGRAMS, sampled=True, tree=Kary(2, 2)), (2, 1)),
}


@diagonal({"source": tuple(DRAWN), "rule": ("multi_draft", "coupled")})
def test_a_drawn_draft_takes_a_copy_a_pass(source, rule):
    make, copies = DRAWN[source]
    here, there, seen = runs(make, sampling=SAMPLED, rule=rule)
    assert there == here
    (usual, count), *_ = Counter(str(step.seen) for step in seen).most_common()
    assert usual == str((*copies, {}))
    assert count >= 5
    assert not any(step.waits or step.down > copies[1] for step in seen)


def test_a_greedy_chain_is_one_copy_whatever_its_length():
    """For each row or for some fewer, of requests that draw too; the view's cache is the oracle's."""
    for make, asked, rule, tokens in (
        (lambda models: drafts.SmallTransformer(models.model, 3), "greedy", "standard", TOKENS),
        (lambda models: drafts.SmallTransformer(models.model, 2, temperature=0), "mixed", "multi_draft", TOKENS),
        (lambda models: drafts.SmallTransformer(models.target, 4), "greedy", "standard", 32),  # of which all stand
        (lambda models: drafts.Quantized(models.target, models.model, 3), "greedy", "standard", TOKENS),
    ):
        here, there, seen = runs(make, sampling=ASKED[asked], rule=rule, tokens=tokens)
        assert there == here
        assert {str(step.seen) for step in seen if step.longest} == {"(2, 1, {})"}


# What the drafts of a step decide: its copies by what it drafted, and by how many a chain of two tokens takes, as
# docs/internals/cuda.md says.
DECIDED: dict[str, tuple[Callable[[Pair], DraftSource], Callable[[Step, int], tuple[int, int]]]] = {
    "until the model doubts": (
        lambda models: drafts.SmallTransformer(models.model, length=Threshold(threshold=0.3, max_draft_tokens=4)),
        lambda step, _: (step.longest + 1, step.longest + 1),
    ),
    "until a law is uncertain": (
        lambda models: drafts.SmallTransformer(models.model, length=Entropy(threshold=0.3, max_draft_tokens=4)),
        lambda step, _: (min(step.longest + 2, 5), min(step.longest + 2, 5)),
    ),
    "staged": (
        lambda models: drafts.Staged(models.model, drafts.PromptLookup(2), 3),
        lambda step, _: (step.inner_steps + 2, step.inner_steps + 1),
    ),
    "staged, with siblings": (
        lambda models: drafts.Staged(models.model, drafts.PromptLookup(2), 3, width=2),
        lambda step, _: (step.inner_steps + 2, step.inner_steps + 1),
    ),
    "staged until the model doubts": (
        lambda models: drafts.Staged(
            models.model, drafts.PromptLookup(2), length=Threshold(threshold=0.05, max_draft_tokens=3)
        ),
        lambda step, _: (2 * step.inner_steps + 2, 2 * step.inner_steps + 1),
    ),
    "merged": (
        lambda models: drafts.Merged([drafts.PromptLookup(3), drafts.SmallTransformer(models.model, 2)]),
        lambda step, chain: (chain + 2, 2) if len(drafted_by(step)) == 2 else (chain + 1, 1),
    ),
    "cascade": (
        lambda models: drafts.Cascade([drafts.PromptLookup(3, min_ngram=2), drafts.SmallTransformer(models.model, 2)]),
        lambda step, chain: {(0,): (1, 1), (1,): (chain + 1, 1), (0, 1): (chain + 2, 2)}[drafted_by(step)],
    ),
}


def drafted_by(step: Step) -> tuple[int, ...]:
    """Return which members of a combination drafted in a step."""
    found = np.unique(step.info.node_sources)
    return tuple(found[found >= 0].tolist())


@diagonal(
    {
        "source": tuple(DECIDED),
        "asked, rule": [("greedy", "multi_draft"), ("sampled", "coupled"), ("mixed", "multi_draft")],
    }
)
def test_what_drafts_decide_takes_the_copies_that_it_needs(source, asked, rule):
    make, copies_of = DECIDED[source]
    here, there, seen = runs(make, sampling=ASKED[asked], rule=rule)
    assert there == here
    assert not any(step.waits for step in seen)
    drafting = [step for step in seen if step.longest]
    chain = 1 if asked == "greedy" else 2
    as_told = [step for step in drafting if (step.up, step.down) == copies_of(step, chain)]
    assert len(as_told) >= max(5, 2 * len(drafting) // 3)
    assert all(step.down <= copies_of(step, chain)[1] for step in drafting)


def test_trees_without_some_of_their_nodes_are_those_of_the_cpu():
    few = SamplingParams(temperature=0.8, top_k=1), SamplingParams(temperature=1.2, top_k=2), SAMPLED, SamplingParams()
    here, there, seen = runs(DRAWN["a tree of a model given by its paths"][0], sampling=few, rule="multi_draft")
    assert there == here
    assert not any(step.waits or step.down > 1 for step in seen)


def test_nodes_that_are_absent_leave_a_tree_by_the_same_numbers_on_a_device():
    rng = np.random.default_rng(7)
    above = np.array([[-1, -1, 0, 0, 1, 2, 2, 5]])
    for most in (8, 3):
        is_real = rng.random((40, 8)) < 0.7
        for node in range(8):
            is_real[:, node] &= (above[0, node] < 0) | is_real[:, above[0, node]]
        is_real &= is_real.cumsum(1) <= most
        for node in range(8):  # a parent that is gone takes its children along
            is_real[:, node] &= (above[0, node] < 0) | is_real[:, above[0, node]]
        parents = np.repeat(above, 40, axis=0)
        kept = compact(is_real, parents)
        order, moved, num_nodes = compact_on_device(torch.from_numpy(is_real), torch.from_numpy(parents), most)
        width = kept.order.shape[1]
        real = ~kept.is_padding
        assert (num_nodes.numpy() == kept.num_nodes).all()
        assert (order.numpy()[:, :width][real] == kept.order[real]).all()
        assert (moved.numpy()[:, :width] == kept.parents).all()
        assert moved.shape[1] == most


def test_penalties_biases_and_bans_take_one_copy_more():
    asked = SamplingParams(
        temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.2, logit_bias={3: 1.5, 7: -2.0}, min_new_tokens=20
    )
    here, there, seen = runs(lambda models: drafts.PromptLookup(4), sampling=asked)
    assert there == here
    assert {str(step.seen) for step in seen} == {"(2, 1, {})"}


def test_what_a_step_crosses_is_counted():
    with emulated_device() as device:
        models, counted = pair(moved), crossings(CUDA)
        decoder = SpeculativeDecoder(models.target, drafts.PromptLookup(4), max_cache_bytes=10**9)
        state = decoder.start(PROMPTS, 6)
        while state.has_work:
            before = counted.uploads, counted.downloads
            device.reset()
            state, _ = decoder.step(state)
            assert (counted.uploads - before[0], counted.downloads - before[1]) == device.seen[:2]


@pytest.mark.parametrize("asked", ["greedy", "sampled"])
def test_nodes_are_recorded_on_a_device(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_likeliest", lambda oracle: [])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (10**10, 10**10))

    def recorded(models: Pair, name: str) -> dict[str, Any]:
        source = drafts.NGram(NGRAMS, sampled=True, tree=Kary(2, 2))
        decoder = SpeculativeDecoder(models.target, source, "multi_draft", max_cache_bytes=10**9)
        records = recording.record_nodes(decoder, tmp_path / name, PROMPTS[:2], 6, ASKED[asked], logprobs=True)
        return {name: values for name, values in records.columns().items() if "seconds" not in name}

    here = recorded(pair(), "here")
    with emulated_device():
        there = recorded(pair(moved), "there")
    assert here.keys() == there.keys()
    assert len(here["p"]) > 20
    for name, values in here.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(there[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            assert (there[name] == values).all(), name


def test_a_run_that_is_left_gives_its_memory_back():
    """What a commit has to move later must not keep the cache."""
    target = pair().target
    decoder = SpeculativeDecoder(target, drafts.NGram(NGRAMS, tree=Kary(2, 2)), "multi_draft")
    seen = set()
    for _ in range(2):
        state = decoder.start(PROMPTS[:1], TOKENS)
        while not state.seating.cache.memory._due:
            state, _ = decoder.step(state)
        seen.add(id(state.seating.cache.memory))
        del state
        gc.collect()
    assert len(seen) == 1


def test_a_run_whose_move_failed_is_started_again(monkeypatch):
    target, source = pair().target, drafts.NGram(NGRAMS, tree=Kary(2, 2))
    whole = SpeculativeDecoder(target, source, "multi_draft").generate(PROMPTS[:1], TOKENS).tokens
    decoder = SpeculativeDecoder(target, source, "multi_draft")
    state, moves = decoder.start(PROMPTS[:1], TOKENS), []

    def fails_once(*given: Any) -> None:
        moves.append(given)
        if len(moves) == 1:
            raise torch.cuda.OutOfMemoryError
        move_kept(*given)

    monkeypatch.setattr("oracles.graphed.graphed_memory.move_kept", fails_once)
    with suppress(torch.cuda.OutOfMemoryError):
        while state.has_work:
            state, _ = decoder.step(state)
    assert state.has_work
    with pytest.raises(ValueError, match="a step of this state was interrupted"):
        decoder.step(state)
    assert decoder.generate(PROMPTS[:1], TOKENS).tokens == whole
    assert len(moves) > 2


def test_what_a_commit_was_given_may_change_afterwards():
    model = pair().target
    kept = []
    for changes in (False, True):
        cache, rows, path = model.new_cache(1, 64), np.array([0]), torch.tensor([[0, 2]])
        model.score(torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]]), torch.tensor([3]), cache, rows)
        cache.commit(rows, path, np.array([2]))
        if changes:
            path.fill_(1)
        kept.append(cache.payload.clone())
    assert torch.equal(*kept)


def test_a_tensor_of_another_device_is_moved():
    meta = torch.zeros(3, device="meta")
    with emulated_device():
        x = torch.arange(2, device=CUDA)
        assert on_device(x, CUDA) is x
    with pytest.raises((NotImplementedError, AssertionError, RuntimeError)):
        on_device(meta, CUDA)


def test_statistics_tell_what_steps_made_the_device_do():
    with emulated_device():
        decoder = SpeculativeDecoder(pair(moved).target, drafts.PromptLookup(4), max_cache_bytes=10**9)
        stats = decoder.generate(PROMPTS, TOKENS, batch_size=2).stats
    steps = stats.target_calls
    assert {name: stats.device[name] for name in ("uploads", "downloads")} == {"uploads": steps, "downloads": steps}
    assert (stats.device["passes_in_graphs"], stats.device["passes_outside"]) == (0, steps)
    assert 0 < stats.device["padded_nodes"] < 8 * steps
    assert pool([stats, stats]).device["uploads"] == 2 * steps
    assert Stats.from_dict(stats.as_dict()).device == stats.device


@pytest.mark.parametrize("source", first_of("model", "lookup", "plain"))
def test_masks_of_grammars_reach_a_device(source):
    def make(models: Pair) -> DraftSource | None:
        models.target.tokenizer = pieces_of([chr(48 + one) for one in range(models.target.vocab_size)])
        return {"plain": None, "lookup": drafts.PromptLookup(3), "model": drafts.SmallTransformer(models.model, 3)}[
            source
        ]

    asked = [SamplingParams(temperature=t, regex="[0-6:;<]+") for t in (0.0, 1.0)]
    sampling = [asked[i % 2] for i in range(len(PROMPTS))]
    here, there, _ = runs(make, sampling=sampling)
    assert there == here
    assert all(token < 7 or 10 <= token < 13 for output in here for token in output)


# Copies to the device in a step of three tokens: the pass's, that of the hidden states, then those of the draft.
OF_HEADS: dict[str, tuple[Callable[[Pair], DraftSource], dict[str, int]]] = {
    "eagle3": (lambda models: drafts.Eagle3(head_beside(models.target), 3), {"greedy": 3, "sampled": 5}),
    "blocks": (lambda models: drafts.BlockDrafter(block_beside(models.target), 3), {"greedy": 3, "sampled": 4}),
}


def test_a_step_of_a_head_takes_a_copy_a_call():
    for source, asked in itertools.product(OF_HEADS, ("greedy", "sampled")):
        make, copies = OF_HEADS[source]
        here, there, seen = runs(make, sampling=ASKED[asked], rule="coupled")
        assert there == here
        usual = [step for step in seen if step.longest == 3]
        assert len(usual) >= 5
        assert {str(step.seen) for step in usual} == {str((copies[asked], 1, {}))}
        assert not any(step.waits or step.down > 1 for step in seen)
