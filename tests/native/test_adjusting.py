"""Penalties, biases and bans within the call that drafts: tokens, laws and reports are those step by step."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafts import Quantized, SmallTransformer, Staged
from oracles.native import NativeTransformer
from specdec import Entropy, Fixed, Heuristic, SamplingParams, Threshold
from specdec.contracts import Budget, Context, Draft, Draws, TreePlan
from specdec.drafting.chain_sampler import confidence_of, entropy_of
from specdec.drafting.shapes import Paths
from specdec.kernels import best_kernels
from specdec.laws import Laws
from specdec.sampling import BatchWarping, ParameterTable
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.support.backends import laws_by, needed_native
from tests.support.drafting.native_drafts import (
    ADJUSTED,
    BUSHY,
    DRAFT,
    ENDING,
    HEATS,
    ORACLE,
    VIEW,
    Counted,
    Curious,
    PassByPass,
    adjusted_requests,
    both_ways,
    flat,
    model,
    run_of_chains,
    run_of_trees,
    tree_bits,
)
from tests.support.drafting.whole_drafts import as_tensors
from tests.support.models.scoring import append
from tests.support.models.tiny_models import small_model
from tests.support.pairwise import chosen, pairwise

needed_native()

each_heat = pytest.mark.parametrize("heat", HEATS)


@chosen(
    {
        "run, options, heat, rule": {
            "greedy": (run_of_chains, {}, "greedy", "standard"),
            "greedy drafts": (run_of_chains, {"temperature": 0.0}, "sampled", "standard"),
            "sampled": (run_of_chains, {}, "sampled", "standard"),
            "coupled": (run_of_chains, {}, "sampled", "coupled"),
            "greedy trees": (run_of_trees, {"tree": BUSHY}, "greedy", "multi_draft"),
            "sampled trees": (run_of_trees, {"tree": BUSHY}, "sampled", "multi_draft"),
            "coupled trees": (run_of_trees, {"tree": BUSHY}, "sampled", "coupled"),
        },
        "adjusted": [*ADJUSTED, "by row"],
        "batch_size": (1, 4),
    },
    # What adjusts stands before all ways: all of it meets each way, and each part of it chains and trees.
    lambda way, adjusted, batch_size: {
        (way, batch_size),
        (way, adjusted) if adjusted in ("all", "by row") else (way.endswith("trees"), adjusted),
    },
)
def test_drafts_are_adjusted_alike_both_ways(run, options, heat, rule, adjusted, batch_size):
    own = {"num_draft_tokens": 4, **options} if run is run_of_chains else options
    whole, asked, asked_whole = both_ways(
        run,
        DRAFT,
        lambda one, _: SmallTransformer(one, **own),
        *(adjusted_requests(heat, adjusted), batch_size, rule),
        oracle=ENDING,
    )
    assert asked_whole < asked / 2
    assert run(SmallTransformer(DRAFT, **own), SamplingParams(**HEATS[heat]), batch_size, rule, ENDING)[2] != whole[2]


LENGTHS = (
    Heuristic(max_draft_tokens=6),
    Threshold(threshold=0.3, max_draft_tokens=5),
    Entropy(max_draft_tokens=5),
    Curious(),
)


@pairwise(
    {
        "policy": {type(policy).__name__: policy for policy in LENGTHS},
        "heat": tuple(HEATS),
        "adjusted": ("all", "by row"),
        "batch_size": (1, 4),
    }
)
def test_policies_are_told_the_same_of_adjusted_chains_both_ways(policy, heat, adjusted, batch_size):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        DRAFT,
        lambda one, length: SmallTransformer(one, length=length),
        *(adjusted_requests(heat, adjusted), batch_size, "coupled"),
        policy=policy,
        oracle=ENDING,
    )
    assert asked_whole < asked / 2


@each_heat
@pytest.mark.parametrize("policy", [Fixed(4), Curious()], ids=["fixed", "curious"])
def test_a_view_is_adjusted_alike_both_ways_on_the_oracles_cache(policy, heat):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        VIEW,
        lambda view, length: Quantized(ORACLE, view, length=length),
        *(adjusted_requests(heat, "by row"), 4, "standard"),
        policy=policy,
    )
    assert asked_whole == 0 < asked


@each_heat
def test_a_staged_drafts_inner_chains_are_adjusted_alike_both_ways(heat):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        DRAFT,
        lambda one, _: Staged(model(3), SmallTransformer(one, num_draft_tokens=2), 5),
        *(adjusted_requests(heat, "by row"), 4, "standard"),
        oracle=ENDING,
    )
    assert asked_whole < asked / 2


@pairwise(
    {
        "tree": {"tree": Paths([(0, 0), (1, 0), (1, 1), (2,), (3,)]), "chain": None},
        "sampling": {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0)},
        "special": (3.0, -torch.inf, torch.inf, torch.nan),
        "adjusted": ("all", "ban"),
    }
)
def test_undefined_logits_are_told_alike_both_ways(tree, sampling, special, adjusted):
    """Where the only such logits are banned, what is told depends on whether tokens are drawn."""
    found, at, native = [], np.arange(2), flat(37, special)
    ids, ends = np.array([[1, 2], [2, 1]]), np.array([2, 2])
    for params in ([replace(sampling, **ADJUSTED[adjusted])] * 2, [sampling, replace(sampling, **ADJUSTED[adjusted])]):
        warping = BatchWarping(ParameterTable.of(params), ids, ends, ends, (0, 18, 36))
        for wrap in (PassByPass, Counted):
            options = {"num_draft_tokens": 4} if tree is None else {"tree": tree}
            session = SmallTransformer(wrap(native), **options).open(native, 2, 32)
            session.begin(at, list(ids), None)
            streams = Keyed.at(seed_keys([1, 2]), ends)
            draft = session.propose(at, Context(ids, ends, warping), Budget(at + 9, at + 9), streams)
            noted = replace(draft, parents=draft.num_nodes) if draft.parents is None else draft
            found.append(tree_bits(noted))
    assert found[0] == found[1]
    assert found[2] == found[3]


class Unadjusting(Counted):
    """A model that drafts by itself, and says nothing of adjustments."""

    adjusts = False


@pytest.mark.parametrize("options", [{"num_draft_tokens": 4}, {"tree": BUSHY}], ids=["chain", "tree"])
@each_heat
def test_a_model_that_does_not_adjust_is_asked_for_each_pass(heat, options):
    run = run_of_trees if "tree" in options else run_of_chains
    passes = []
    for sampling in (adjusted_requests(heat, "all"), SamplingParams(**HEATS[heat])):
        models = PassByPass(DRAFT), Unadjusting(DRAFT)
        found = [run(SmallTransformer(one, **options), sampling, 4, "multi_draft", oracle=ENDING) for one in models]
        assert found[0] == found[1]
        passes.append(models[1].num_passes == models[0].num_passes)
    assert passes == [True, False]


def test_laws_of_torch_are_adjusted_pass_by_pass():
    with laws_by("torch"):
        _, asked, asked_whole = both_ways(
            run_of_chains,
            DRAFT,
            lambda one, _: SmallTransformer(one, num_draft_tokens=4),
            *(adjusted_requests("sampled", "by row"), 4, "standard"),
            oracle=ENDING,
        )
    assert asked == asked_whole


# ---- The calls themselves ----

ROWS, LENGTHS_OF_ROWS, LIMITS = np.array([2, 0, 3]), (5, 40, 1), np.array([4, 9, 3])
SAMPLINGS = [
    SamplingParams(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.3, logit_bias={9: 0.2}),
    SamplingParams(
        temperature=0.7, top_k=20, presence_penalty=0.4, logit_bias={3: 2.0, 11: -math.inf}, min_new_tokens=9
    ),
    SamplingParams(temperature=1.5, presence_penalty=0.9, repetition_penalty=0.7, min_new_tokens=3),
]
PLAIN = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.01),
    SamplingParams(temperature=1.5, top_p=0.8),
]
EOS = (4, 20)
STREAMS = {
    "greedy": None,
    "keyed": Keyed(seed_keys([3, 4, 5]), (np.array([7, 8, 9]),)),
    "coupled": Coupled(seed_keys([3, 4, 5]), np.array([7, 8, 9])),
}
KEYS = STREAMS["keyed"].chain_keys("draft")


def prepared(samplings=SAMPLINGS):
    """Return a model, a cache with ragged rows, the tokens and counts of a call, and the warping of what stands."""
    native, tokens = (
        NativeTransformer(small_model()),
        torch.randint(23, (3, 3), generator=torch.Generator().manual_seed(7)),
    )
    cache, counts = native.new_cache(4, 64), torch.tensor([3, 1, 2])
    ids, ends = np.full((3, 44), -7), np.zeros(3, dtype=np.int64)
    for b, (row, length) in enumerate(zip(ROWS, LENGTHS_OF_ROWS, strict=True)):
        append(native, cache, int(row), torch.arange(length) % 23)
        ends[b] = length + int(counts[b])
        ids[b, : ends[b]] = [*(np.arange(length) % 23), *tokens[b, : counts[b]].tolist()]
    warping = BatchWarping(ParameterTable.of(samplings), ids, ends, ends - np.array([4, 6, 1]), EOS)
    return native, cache, tokens, counts, warping


def logits_of(native, cache, tokens, counts, b):
    """Return what gives the logits after a path of ids, passes of their own."""
    row = int(ROWS[b])

    def after(path):
        length = int(cache.lengths[row])
        logits = append(native, cache, row, torch.cat([tokens[b, : counts[b]], torch.tensor(path, dtype=torch.int64)]))
        cache.truncate(np.array([row]), np.array([length]))
        return logits[-1]

    return after


def adjusted_by(warping, b, path, logits):
    """Return logits ``[V]`` after a path of drafted ids, adjusted as warpings do it."""
    draft = Draft(torch.tensor([path], dtype=torch.int64), torch.tensor([len(path)]))
    own = warping.select(np.array([b]))
    return own.adjust(logits[None, None], draft, torch.tensor([len(path)]))[0, 0], own


@pytest.mark.parametrize("is_adjusted", [False, True], ids=["plain", "adjusted"])
@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
def test_chains_in_one_call_are_those_of_single_passes(streams, is_adjusted):
    native, cache, tokens, counts, warping = prepared(SAMPLINGS if is_adjusted else PLAIN)
    limits, entropies = LIMITS * [1, 1, is_adjusted], []
    watch = SimpleNamespace(limits=limits, reads_entropy=True, reads_confidence=True)
    watch.before = lambda depth, entropy: entropies.append(torch.tensor(entropy))
    watch.after = lambda depth, confidence: setattr(watch, "confidence", torch.tensor(confidence))
    draws = None if streams is None else Draws(warping.filters(), streams.chain_keys("draft"))
    found, kernels = [], best_kernels()
    for one in (watch, None):
        cache.truncate(ROWS, np.array(LENGTHS_OF_ROWS))
        call = tokens, counts, cache, ROWS, limits, one, draws, warping.adjustments
        found.append(as_tensors(native.follow_ids, *call))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True) if a is not None)
    (ids, peaks, laws), again = found[1], prepared(PLAIN)[1]
    told = [ids, peaks, watch.confidence, torch.stack(entropies, 1), *([] if laws is None else [laws])]
    assert all(one.shape[:2] == (3, 9) for one in told)
    for b, row in enumerate(ROWS):
        assert not any(one[b, limits[b] :].any() for one in told)
        logits, own = append(native, again, int(row), tokens[b, : counts[b]])[-1], np.array([b])
        for i in range(limits[b]):
            adjusted, warped = adjusted_by(warping, b, ids[b, :i].tolist(), logits)
            chosen, law = ids[b, i].view(1, 1), Laws.points(ids[b, i].view(1, 1))
            if streams is None:
                assert chosen == adjusted.argmax()
                assert peaks[b, i] == logits[adjusted.argmax()]
            else:
                law = warped.laws_of(adjusted[None, None])
                assert torch.equal(laws[b, i], law.table[0])
                assert chosen == streams.select(own).choose(law, node=i, depth=i, purpose="draft")
                assert peaks[b, i] == logits.max()
            given = law, logits[None, None]
            assert torch.equal(watch.confidence[b, i], confidence_of(*given, chosen, kernels)[0, 0])
            assert torch.equal(entropies[i][b], entropy_of(*given, kernels)[0, 0])
            if i + 1 < limits[b]:
                logits = append(native, again, int(row), ids[b, i : i + 1])[-1]
    assert np.array_equal(cache.lengths, again.lengths)
    last, one = torch.tensor([[1], [2], [3]]), torch.ones(3, dtype=torch.int64)
    assert torch.equal(*(native.score(last, None, one, some, ROWS).logits for some in (cache, again)))


@pytest.mark.parametrize("is_drawn", [False, True], ids=["ranked", "drawn"])
def test_adjusted_trees_in_one_call_are_those_of_single_passes(is_drawn):
    native, cache, tokens, counts, warping = prepared()
    parents = np.array([-1, -1, 0, 0, 1, 2, 5, 5])
    inner = [-1, 0, 1, 2, 5]
    draws = Draws(warping.filters(), KEYS if is_drawn else None)
    call = tokens, counts, cache, ROWS, TreePlan(parents), np.array([8, 8, 5]), draws
    ids, peaks, laws = as_tensors(native.trees, *call, warping.adjustments)
    cache.truncate(ROWS, np.array(LENGTHS_OF_ROWS))
    for b, limit in enumerate(call[5]):
        after = logits_of(native, cache, tokens, counts, b)
        for place, node in enumerate(inner):
            children = [i for i in range(limit) if parents[i] == node]
            if not children:
                assert peaks[b, place] == -torch.inf
                continue
            path, above = [], node
            while above >= 0:
                path, above = [int(ids[b, above]), *path], parents[above]
            logits = after(path)
            adjusted, own = adjusted_by(warping, b, path, logits)
            law = own.laws_of(adjusted[None, None]).table[0]
            if is_drawn:
                assert torch.equal(laws[b * len(inner) + place], law)
                assert peaks[b, place] == logits.max()
            else:
                order = law.argsort(descending=True, stable=True)[: len(children)]
                best = adjusted.argmax()[None] if len(children) == 1 else order
                assert ids[b, children].tolist() == best.tolist()
                assert peaks[b, place] == logits[adjusted.argmax()]


def test_adjustments_that_cannot_be_are_refused():
    native, cache, tokens, counts, warping = prepared()
    given = warping.adjustments
    call = tokens, counts, cache, ROWS, LIMITS, None
    for changed in (
        replace(given, bias_ids=given.bias_ids + 20),
        replace(given, eos_ids=np.array([23])),
        replace(given, eos_ids=np.array([-1])),
        replace(given, ids=given.ids + 20),
        replace(given, num_committed=given.num_committed + 1),
    ):
        with pytest.raises(ValueError, match=r"outside the vocabulary|cannot have num_committed"):
            as_tensors(native.follow_ids, *call, None, changed)
        draws, plan = Draws(warping.filters(), None), TreePlan(np.array([-1, -1]))
        with pytest.raises(ValueError, match=r"outside the vocabulary|cannot have num_committed"):
            as_tensors(native.trees, *call[:4], plan, np.full(3, 2), draws, changed)
    for changed in (
        replace(given, ids=given.ids[:2]),
        replace(given, ids=given.ids[:, :20]),
        replace(given, penalties=given.penalties[:2]),
        replace(given, biases=given.biases[1:]),
        replace(given, min_new_tokens=given.min_new_tokens[1:]),
        replace(given, prompt_lengths=given.prompt_lengths[1:]),
        replace(given, ids=given.ids[0]),
        replace(given, eos_ids=given.eos_ids[None]),
        replace(given, num_committed=given.num_committed * [1, 1, -1]),
        replace(given, bias_ends=given.bias_ends * [1, -1, 1]),
        replace(given, bias_ends=given.bias_ends + np.array([10**9, 0, 0])),
    ):
        with pytest.raises(ValueError, match="adjustments of 3 rows cannot have"):
            as_tensors(native.follow_ids, *call, None, changed)
