"""Replays against real runs: the same steps for every policy and shape, the same expectations for every rule."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import drafts
import oracles
from specdec import (
    RULES,
    Chain,
    Entropy,
    Fixed,
    Grown,
    Heuristic,
    Kary,
    Paths,
    ReRanked,
    SamplingParams,
    SpeculativeDecoder,
)
from specdec.contracts import DraftSource, Reads, WatchedSession, WatchedSource
from specdec.drafting.lengths import LengthPolicy
from specdec.traces import DenseRecords, record_chains, record_nodes, record_trees, replay
from tests.support.pairwise import diagonal
from tests.support.registry import POLICIES, SIX_IDS

m = SIX_IDS
PROMPTS = [[i % 6, (i * i) % 6, 2, 3] for i in range(4)]
NEW = 12
COLUMNS = ("request", "num_committed", "num_drafted", "num_accepted", "num_emitted")
WITH_LAWS: dict[str, Callable[[LengthPolicy], DraftSource]] = {
    "small": lambda length: drafts.SmallTransformer(m.model, length=length),
    "small, warm": lambda length: drafts.SmallTransformer(m.model, length=length, temperature=1.5),
    "early exit": lambda length: drafts.EarlyExit(m.layered, 2, length=length),
    "quantized, hot": lambda length: drafts.Quantized(m.layered, m.view, length=length, temperature=1.5),
    "ngram": lambda length: drafts.NGram(m.ngrams, length=length, sampled=True),
}
CHAINS = {
    **WITH_LAWS,
    "ngram, greedy": lambda length: drafts.NGram(m.ngrams, length=length),
    "lookup": lambda length: drafts.PromptLookup(length=length),
    "lookup, first": lambda length: drafts.PromptLookup(length=length, match="first", wrap=True),
}
OF_LAYERS = ("early exit", "quantized, hot")
LENGTHS = {**{name: long for name, (long, _) in POLICIES.items()}, **{f"fixed {k}": Fixed(k) for k in (0, 1, 4, 6)}}
WAYS = {
    "greedy": ("standard", SamplingParams(ignore_eos=True)),
    "coupled": ("coupled", SamplingParams(temperature=0.9, ignore_eos=True)),
}


def steps_of(result) -> dict[str, list[int]]:
    columns = result.records.columns()
    order = np.lexsort((columns["num_committed"], columns["request"]))
    return {name: np.asarray(columns[name])[order].tolist() for name in COLUMNS}


def replayed(records: DenseRecords, **choice) -> dict[str, list[int]]:
    made = replay(records, **choice)
    return {name: made.columns[name].tolist() for name in COLUMNS}


@diagonal({"name": tuple(CHAINS), "way": tuple(WAYS)})
def test_every_length_policy_replays_as_it_runs(name, way, tmp_path):
    rule, sampling = WAYS[way]
    make, entropies, oracle = CHAINS[name], name in WITH_LAWS, m.layered if name in OF_LAYERS else m.other
    dense = record_chains(oracle, make, PROMPTS, 6, NEW, sampling, batch_size=3, rule=rule, entropies=entropies)
    dense.save(tmp_path / "dense.parquet")
    loaded = DenseRecords.load(tmp_path / "dense.parquet")
    lengths = set()
    for policy in LENGTHS.values():
        if policy.reads_entropy and not entropies:
            continue
        decoder = SpeculativeDecoder(oracle, make(policy), rule)
        result = decoder.generate(PROMPTS, NEW, sampling, batch_size=4)
        assert result.tokens == loaded.outputs
        assert replayed(loaded, length=policy) == steps_of(result), policy
        assert replay(loaded, length=policy).block_efficiency == result.stats.block_efficiency
        lengths.add(tuple(steps_of(result)["num_drafted"]))
    assert len(lengths) > 3, "the policies differ"


@pytest.mark.parametrize("way", WAYS)
def test_what_compiled_chains_tell_a_policy_is_recorded(way):
    rule, sampling = WAYS[way]
    oracle, model = oracles.load("code-draft"), oracles.load("code-draft-tiny")
    dense = record_chains(
        oracle,
        lambda length: drafts.SmallTransformer(model, length=length),
        ["def main():\n", "import os\n"],
        6,
        NEW,
        sampling,
        rule=rule,
        entropies=True,
    )
    for policy in (Entropy(max_draft_tokens=6), Entropy(0.7, max_draft_tokens=6), POLICIES["constant"][0]):
        decoder = SpeculativeDecoder(oracle, drafts.SmallTransformer(model, length=policy), rule)
        result = decoder.generate(["def main():\n", "import os\n"], NEW, sampling)
        assert replayed(dense, length=policy) == steps_of(result), policy


@diagonal({"sampled": {"model": False, "ngrams": True}, "way": tuple(WAYS)})
def test_every_part_of_a_tree_replays_as_it_runs(sampled, way):
    rule = "sample_and_match" if way == "greedy" else "coupled"
    sampling = WAYS[way][1]

    def make(tree) -> DraftSource:
        if sampled:
            return drafts.NGram(m.ngrams, tree=tree, sampled=way == "coupled")
        return drafts.SmallTransformer(m.model, tree=tree)

    dense = record_trees(m.layered, make, PROMPTS, Kary(3, 4), NEW, sampling, rule=rule)
    for shape in (Kary(2, 3), Kary(3, 2), Chain(4), Chain(0), Paths([(0, 0, 0, 0), (0, 1), (1, 0), (2,)]), Kary(3, 4)):
        result = SpeculativeDecoder(m.layered, make(shape), rule).generate(PROMPTS, NEW, sampling, batch_size=4)
        assert result.tokens == dense.outputs
        assert replayed(dense, shape=shape) == steps_of(result), shape


CONFIDENT = {
    "model": lambda tree: drafts.SmallTransformer(m.model, tree=tree, temperature=0),
    "ngrams": lambda tree: drafts.NGram(m.ngrams, tree=tree),
}


@diagonal({"name": tuple(CONFIDENT), "way": tuple(WAYS)})
def test_shapes_decided_by_confidence_replay_as_they_run(name, way, tmp_path):
    rule = "sample_and_match" if way == "greedy" else "coupled"
    sampling, make = WAYS[way][1], CONFIDENT[name]
    record_trees(m.layered, make, PROMPTS, Kary(3, 4), NEW, sampling, rule=rule, confidences=True).save(
        tmp_path / "dense.parquet"
    )
    dense, sizes = DenseRecords.load(tmp_path / "dense.parquet"), set()
    shapes = (
        *(Grown(9, 3), Grown(12, 4, 3), Grown(7, 3, 3, min_confidence=0.05), Grown(8, 4, 3, 0.2), Grown(0, 2)),
        *(ReRanked(5, 3, 2), ReRanked(8, 4, 3), ReRanked(30, 2, 3), ReRanked(1, 1, 1), Kary(2, 2)),
    )
    for shape in shapes:
        result = SpeculativeDecoder(m.layered, make(shape), rule).generate(PROMPTS, NEW, sampling, batch_size=4)
        assert result.tokens == dense.outputs
        assert replayed(dense, shape=shape) == steps_of(result), shape
        sizes.add(tuple(steps_of(result)["num_drafted"]))
    assert len(sizes) == len(shapes), "the shapes differ"


def test_growing_shapes_that_a_record_cannot_answer_are_refused():
    def recorded(make, **options) -> DenseRecords:
        return record_trees(m.layered, make, PROMPTS, Kary(2, 3), 8, **options)

    sampled = SamplingParams(temperature=1.0)
    chosen = recorded(CONFIDENT["model"], confidences=True)
    drawn = recorded(
        lambda tree: drafts.SmallTransformer(m.model, tree=tree), sampling=sampled, rule="coupled", confidences=True
    )
    for reason, records, shape in (
        ("confidences, which were not recorded", recorded(CONFIDENT["model"]), Grown(4, 2)),
        ("reads laws that are not recorded: draft greedily", drawn, Grown(4, 2)),
        ("has 4 levels, the recorded trees 3", chosen, Grown(4, 4)),
        (r"asks for the node \(2,\), which the recorded trees lack", chosen, ReRanked(4, 2, 3)),
        (r"asks for the node \(2,\), which the recorded trees lack", chosen, Grown(9, 3)),
    ):
        with pytest.raises(ValueError, match=reason):
            replay(records, shape=shape)


@pytest.mark.parametrize("ending", [{"stop": [[2, 2], [4]]}, {}], ids=["stop", "length"])
def test_after_an_end_accepted_tokens_are_counted_up_to_it(ending):
    sampling = SamplingParams(temperature=0.9)
    make = CHAINS["small"]
    dense = record_chains(m.layered, make, PROMPTS, 6, NEW, sampling, rule="coupled", **ending)
    result = SpeculativeDecoder(m.layered, make(Fixed(6)), "coupled").generate(PROMPTS, NEW, sampling, **ending)
    found, expected = replayed(dense, length=Fixed(6)), steps_of(result)
    assert result.tokens == dense.outputs
    for name in set(COLUMNS) - {"num_accepted"}:
        assert found[name] == expected[name]
    at_most = np.asarray(found["num_accepted"]) <= np.asarray(expected["num_accepted"])
    assert at_most.all()
    same = np.asarray(found["num_accepted"]) == np.asarray(expected["num_accepted"])
    is_last = np.diff([*expected["request"], -1]) != 0
    assert (same | is_last).all()


def spying(rule: str):
    """Return the rule, and a list of the expected accepted tokens of its verdicts, which have whole laws."""
    expected: list[float] = []

    def judge(self, draft, target_laws):
        verdict = type(RULES[rule]).__call__(self, draft, target_laws)
        expected.extend((verdict.stop_probs * draft.tree.depth).sum(1).tolist())
        return verdict

    return type("Spy", (type(RULES[rule]),), {"__call__": judge})(), expected


TREES = {
    "standard": {"small": CHAINS["small"](Fixed(4)), "lookup": CHAINS["lookup"](Fixed(4))},
    "multi_draft": {
        "small": CHAINS["small"](Fixed(4)),
        "greedy tree": drafts.SmallTransformer(m.model, tree=Kary(2, 3), temperature=0),
    },
    "block": {"lookup": CHAINS["lookup"](Fixed(4))},
    "traversal": {
        "greedy tree": drafts.SmallTransformer(m.model, tree=Kary(2, 3), temperature=0),
        "lookahead": drafts.Lookahead(),
    },
    "sample_and_match": {
        "small": CHAINS["small"](Fixed(4)),
        "merged": drafts.Merged([drafts.PromptLookup(3), drafts.SmallTransformer(m.model, 3)]),
        "tree": drafts.SmallTransformer(m.model, tree=Kary(2, 3)),
        "lookahead": drafts.Lookahead(),
    },
}
RUNS = [(rule, name, 1.0) for rule, sources in TREES.items() for name in sources]
# Greedily ids are compared, whoever drafted them.
RUNS += [(rule, next(iter(sources)), 0.0) for rule, sources in TREES.items()]


@pytest.mark.parametrize(("rule", "name", "temperature"), RUNS)
def test_a_rule_expects_of_p_and_q_what_it_expects_of_whole_laws(rule, name, temperature, tmp_path):
    spy, expected = spying(rule)
    decoder = SpeculativeDecoder(m.layered, TREES[rule][name], spy)
    sampling = SamplingParams(temperature=temperature)
    records = record_nodes(decoder, tmp_path, PROMPTS, NEW, sampling, batch_size=1)
    made = replay(records, rule=rule).columns
    rows = records.columns()
    _, step = np.unique(np.stack([rows["request"], rows["step"]]), axis=1, return_inverse=True)
    if temperature == 0:  # ids were compared, and the verdict is certain
        assert made["num_accepted"].tolist() == np.bincount(step.reshape(-1), rows["accepted"]).tolist()
        return
    drafted = np.bincount(step.reshape(-1), rows["node"] >= 0) > 0
    assert drafted.sum() > 10
    np.testing.assert_allclose(made["num_accepted"][drafted], expected, rtol=1e-9, atol=1e-12)
    assert (made["num_accepted"][~drafted] == 0).all()


def test_a_rule_says_what_a_replay_has_to_read(tmp_path):
    declared = {name for name, rule in RULES.items() if rule.reads is not Reads.LAWS and not rule.coupled}
    assert declared == set(TREES), "TREES compares the rules that records replay"

    class Own(type(RULES["standard"])):
        def __call__(self, draft, target_laws):
            return super().__call__(draft, target_laws)

    class Beside:
        def __call__(self, draft, target_laws):
            raise AssertionError

    class Mixed(Beside, type(RULES["standard"])):
        pass

    assert Mixed.reads is Reads.LAWS
    assert Mixed.native_judge is None
    decoder = SpeculativeDecoder(m.layered, CHAINS["small"](Fixed(3)))
    records = record_nodes(decoder, tmp_path, PROMPTS, NEW, SamplingParams(temperature=1.0))
    with pytest.raises(ValueError, match="rule='standard': it may read whole laws"):
        replay(records, rule=Own())
    Own.reads = "p"
    with pytest.raises(ValueError, match="reads is 'p'; give a member of"):
        replay(records, rule=Own())
    Own.reads = Reads.DRAFTED
    found, wanted = (replay(records, rule=rule).columns["num_accepted"] for rule in (Own(), "standard"))
    assert found.tolist() == wanted.tolist()


def test_standard_expects_products_of_the_ratios(tmp_path):
    decoder = SpeculativeDecoder(m.layered, CHAINS["small"](Fixed(3)))
    records = record_nodes(decoder, tmp_path, PROMPTS, NEW, SamplingParams(temperature=1.0))
    rows, made = records.columns(), replay(records, rule="standard")
    for request, step, accepted in zip(*(made.columns[n] for n in ("request", "step", "num_accepted")), strict=True):
        own = (rows["request"] == request) & (rows["step"] == step) & (rows["node"] >= 0)
        assert np.minimum(1, rows["p"][own] / rows["q"][own]).cumprod().sum() == pytest.approx(accepted, abs=1e-12)
    assert made.claim == "expectations at the starts of the recorded steps"


def test_records_that_do_not_suffice_are_refused(tmp_path):
    greedy = SamplingParams()
    dense = record_chains(m.layered, CHAINS["lookup"], iter(PROMPTS), 4, 8, greedy)
    trees = record_trees(m.layered, lambda t: drafts.NGram(m.ngrams, tree=t), iter(PROMPTS), Kary(2, 2), 8, greedy)
    assert len(dense.outputs) == len(trees.outputs) == len(PROMPTS)
    tree = drafts.SmallTransformer(m.model, tree=Kary(2, 2))
    nodes = record_nodes(
        SpeculativeDecoder(m.layered, tree, "sample_and_match"), tmp_path, PROMPTS, 8, SamplingParams(temperature=1.0)
    )
    refused = {
        "drafts up to 20 tokens, but the record holds drafts of 4": (dense, {"length": Heuristic()}),
        "reads entropies, which were not recorded": (dense, {"length": Entropy(max_draft_tokens=4)}),
        "the recorded drafts branch": (trees, {"length": Fixed(2)}),
        "is decided as it grows": (trees, {"shape": Grown(4, 2)}),
        "lack 8 of its nodes": (trees, {"shape": Kary(2, 3)}),
        "needs dense records": (nodes, {"length": Fixed(2)}),
        "needs node records": (dense, {"rule": "standard"}),
        "token by token": (nodes, {"rule": "coupled"}),
        "takes whole laws": (nodes, {"rule": "multi_draft"}),
        "drawn token leaves of the target's law takes whole laws": (nodes, {"rule": "traversal"}),
        "typical': it may read whole laws": (nodes, {"rule": "typical"}),
        "judges chains only": (nodes, {"rule": "standard"}),
        "give one of length, shape and rule, not none": (dense, {}),
        "not length and rule": (dense, {"length": Fixed(2), "rule": "standard"}),
    }
    for reason, (records, choice) in refused.items():
        with pytest.raises(ValueError, match=reason):
            replay(records, **choice)


class Scouting(WatchedSession):
    """A session that hands its drafts on as scouts."""

    def propose(self, *given):
        draft = self.inner.propose(*given)
        return replace(draft, is_scout=torch.ones_like(draft.tokens, dtype=torch.bool))


def scouting(length) -> DraftSource:
    return WatchedSource(CHAINS["lookup"](length), lambda session, *_: Scouting(session))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (scouting, "drafts scouts"),
        (lambda length: drafts.Cascade([drafts.PromptLookup(4), CHAINS["small"](length)]), "joins the drafts"),
        (lambda length: drafts.SuffixAutomaton(length=length), "drafts otherwise within a smaller limit"),
        (lambda length: drafts.Staged(m.model, drafts.NGram(m.ngrams, 3), length=length), "has stages"),
        (lambda length: drafts.PromptLookup(4), "in 0 sessions"),
        (lambda length: drafts.Merged([drafts.PromptLookup(length=length)] * 2), "branches"),
        (lambda length: drafts.PromptLookup(length=Heuristic()), "depends on earlier drafts"),
    ],
)
def test_sources_without_a_dense_record_are_refused(make, reason, monkeypatch):
    monkeypatch.delattr(SpeculativeDecoder, "finish")  # before a run has ended
    with pytest.raises(ValueError, match=reason):
        record_chains(m.layered, make, PROMPTS, 4, 8)


def test_drawn_siblings_need_coupled_draws(monkeypatch):
    monkeypatch.delattr(SpeculativeDecoder, "finish")  # sources are refused before a run has ended

    def make(tree) -> DraftSource:
        return drafts.SmallTransformer(m.model, tree=tree, temperature=1.5)

    def joined(tree) -> DraftSource:
        return drafts.Merged([drafts.PromptLookup(3), CONFIDENT["model"](tree)])

    with pytest.raises(ValueError, match="keyed by their tree"):
        record_trees(m.layered, make, PROMPTS, Kary(2, 2), 8)
    with pytest.raises(ValueError, match="learns from the scores"):
        record_trees(m.layered, lambda tree: drafts.Lookahead(), PROMPTS, Kary(2, 2), 8)
    with pytest.raises(ValueError, match="the source joins the drafts of several members"):
        record_trees(m.layered, joined, PROMPTS, Kary(2, 2), 8)
    with pytest.raises(ValueError, match="does not read the shape that make_source is given"):
        record_trees(m.layered, lambda tree: drafts.PromptLookup(4), PROMPTS, Kary(2, 2), 8)
    with pytest.raises(ValueError, match="decided as it grows"):
        record_trees(m.layered, make, PROMPTS, Grown(4, 2), 8)


def test_a_record_of_nothing_replays_to_nothing(tmp_path):
    dense = record_chains(m.layered, CHAINS["lookup"], [], 4, 8)
    assert replay(dense, length=Fixed(4)).block_efficiency is None
    nodes = record_nodes(SpeculativeDecoder(m.layered), tmp_path, [], 8)
    assert replay(nodes, rule="standard").num_steps == 0
    steps = record_nodes(SpeculativeDecoder(m.layered), tmp_path / "no step", PROMPTS, 0)
    assert replay(steps, rule="standard").num_steps == 0
