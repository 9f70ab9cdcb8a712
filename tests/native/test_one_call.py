"""Which verdicts, and which drafts, are one native call: whatever goes another way stands here with the reason.

The other ways give the same output, slower: no test of what comes out notices that one of them was taken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from drafts import BlockDrafter, PromptLookup, SmallTransformer
from experiments.harness import running as harness
from experiments.harness.arguments import paired_parser, settings_of
from experiments.harness.arms import EngineArm
from experiments.harness.models import load_oracle
from experiments.strategies import STRATEGIES
from oracles.heads import DFlashHead, MedusaHead, NativeBlockHead
from oracles.native import NativeTransformer
from oracles.native.native_scoring import NativeScoring
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSource,
    IntArray,
    Oracle,
    Randomness,
    Verdict,
    VerificationRule,
    WatchedSession,
    WatchedSource,
)
from specdec.drafting import DraftModel
from specdec.kernels.compiled import PackedDrafts
from specdec.sampling.randomness import Coupled, Keyed
from specdec.verify import RULES, Standard
from tests.support.backends import laws_by, needed_native
from tests.support.drafting import draft_rows
from tests.support.models.tiny_models import rough_view, tiny_transformer
from tests.support.pairwise import cover, pairs_of
from tests.support.registry import LARGE_SHAPES, OTHERS, SIX_IDS, SOURCES, WAYS, Models
from tests.support.runs.experiments import TEXT, common, own

needed_native()

# By the name of a class, of a source or of its tree's shape: why a model drafts pass by pass.
BY_PASSES = {
    "BlockDrafter": "trees, and Markov heads that read more than ids, go from depth to depth after the one pass",
    "Medusa": "heads are torch operations on one state: there is no chain to follow",
    "OtherVocabulary": "what is drawn is a law of the target's ids, made of the model's logits between two passes",
    "EarlyExit": "the verify pass goes on from the streams that the passes through the lower layers leave",
    "Staged": "a pass scores what an inner source drafted, and its verdict says where the next one begins",
    "Grown": "the confidences of a level decide which of its nodes are scored",
    "ReRanked": "the confidences of a level decide which of its nodes are scored",
}

SAMPLINGS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95)}
SAMPLINGS |= {f"{how}, penalised": replace(sampling, repetition_penalty=1.3) for how, sampling in SAMPLINGS.items()}
PROMPTS = [[1, 2, 3, 1, 2], [0, 1], [4, 2, 5, 4, 2, 1]]
ORACLE = tiny_transformer(6, torch.float32, 1, NativeTransformer, num_layers=3)
NATIVE = Models(
    tiny_transformer(6, torch.float32, 2, NativeTransformer),
    tiny_transformer(6, torch.float32, 3, NativeTransformer),
    ORACLE,
    rough_view(6, torch.float32, 1, NativeTransformer, num_layers=3),
    SIX_IDS.ngrams,
)
EVERY: dict[str, DraftSource] = {name: make(NATIVE) for name, make in WAYS.items()}


@dataclass
class Tally:
    """How a run went.

    Attributes:
        verdicts: on the drafts of a batch.
        walks: native calls that gave one.
        draws: for a verdict, or for one inside a staged draft, outside of such a call.
        calls: of each function that drafts whole chains or trees.
        passes: for drafts, outside of such a call; what catches up with ids that stand is none of them.
        is_drafting: whether a draft is being made.
    """

    verdicts: int = 0
    walks: int = 0
    draws: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    passes: int = 0
    is_drafting: bool = False

    @property
    def is_judged_in_one_call(self) -> bool:
        """Whether every verdict is one native call."""
        return self.walks == self.verdicts > 0 == self.draws

    def walking(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            draw(*args)
            self.walks += not self.is_drafting

        return noting

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        def noting(streams: Randomness, laws: Any, node: Any, depth: Any, purpose: str, k: int = 1) -> Any:
            self.draws += purpose.split()[-1] in ("target", "stop", "next")  # "inner stop" in a staged draft
            return choose(streams, laws, node, depth, purpose, k)

        return noting

    def calling(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.calls[name] += 1
            return function(*args)

        return noting

    def scoring(self, score: Callable[..., Any]) -> Callable[..., Any]:
        def noting(
            model: Any, tokens: Any, parents: Any, num_nodes: Any, cache: Any, rows: Any,
            want: str = "all", hidden: Sequence[int] = (), *args: Any, **part: Any,
        ) -> Any:  # fmt: skip
            self.passes += self.is_drafting and (want != "none" or len(hidden) > 0)
            return score(model, tokens, parents, num_nodes, cache, rows, want, hidden, *args, **part)

        return noting

    def opening(self, open_block: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.passes += self.is_drafting
            return open_block(*args)

        return noting


@dataclass
class Drafting(WatchedSession):
    """A session that says when a draft is being made."""

    tally: Tally

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        self.tally.is_drafting = True
        try:
            return super().propose(rows, context, budget, randomness)
        finally:
            self.tally.is_drafting = False


@contextmanager
def tallied(tally: Tally) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedDrafts, "draw", tally.walking(PackedDrafts.draw))
        for streams in (Keyed, Coupled):
            patch.setattr(streams, "choose", tally.choosing(streams.choose))
        for name in ("follow_ids", "trees"):
            patch.setattr(NativeScoring, name, tally.calling(name, getattr(NativeScoring, name)))
        patch.setattr(NativeScoring, "score", tally.scoring(NativeScoring.score))
        patch.setattr(NativeBlockHead, "follow_blocks", tally.calling("blocks", NativeBlockHead.follow_blocks))
        for head in (DFlashHead, MedusaHead, NativeBlockHead):
            patch.setattr(head, "open_block", tally.opening(head.open_block))
        yield


Decode = Callable[[DraftSource, SamplingParams], SpeculativeDecoder]


def run(source: DraftSource, decode: Decode, sampling: SamplingParams, prompts: Sequence[Any], **options: Any) -> Tally:
    """Return how a source's run went."""
    tally = Tally()
    decoder = decode(WatchedSource(source, lambda session, *_: Drafting(session, tally)), sampling)
    with tallied(tally):
        result = decoder.generate(prompts, 6, sampling, seed=3, **options)
    tally.verdicts = result.stats.target_calls
    return tally


def by(rule: str | VerificationRule) -> Decode:
    return lambda source, _: SpeculativeDecoder(ORACLE, source, rule)


def kinds_of(source: DraftSource) -> set[str]:
    """Return by which names ``BY_PASSES`` may know a source."""
    shape = getattr(source, "tree", None)
    if isinstance(source, BlockDrafter) and source.head.chains and shape is None:
        return set()
    return {type(source).__name__, type(shape).__name__}


def astray(
    source: DraftSource, decode: Decode, prompts: Sequence[Any] = PROMPTS, samplings: Iterable[str] = SAMPLINGS
) -> list[str]:
    """Return what went another way than it should."""
    found = []
    kinds = kinds_of(source)
    for how in samplings:
        tally = run(source, decode, SAMPLINGS[how], prompts)
        calls = tally.calls.total()
        by_passes = calls + tally.passes > 0 and not kinds.isdisjoint(BY_PASSES)
        if not tally.is_judged_in_one_call:
            found.append(f"{how}: {tally.verdicts} verdicts are {tally.walks} calls and {tally.draws} draws")
        if (tally.passes > 0) != by_passes:
            found.append(f"{how}: drafts are {calls} calls and {tally.passes} passes: is BY_PASSES right?")
    return found


@pytest.fixture(scope="module")
def experiment(checkpoints: Path) -> tuple[dict[str, Any], Oracle]:
    """Return the arguments of an experiment with all strategies, and its oracle."""
    options = [part for name in STRATEGIES for part in own(checkpoints, name, f"{name.replace('_', '-')}-")]
    parser = harness.comparing(paired_parser(""))
    arguments = vars(parser.parse_args([*common(checkpoints, checkpoints), *options]))
    return arguments, load_oracle(arguments)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_goes_the_fast_way_in_its_arms(name, experiment):
    arguments, oracle = experiment
    strategy, settings = STRATEGIES[name], settings_of(arguments, name)
    for changed in ({}, *strategy.variants.values()):
        source = strategy.build({**settings, **changed}, oracle)

        def decode(draft: DraftSource, sampling: SamplingParams) -> SpeculativeDecoder:
            return EngineArm(name, oracle, draft, sampling).decoder

        assert astray(source, decode, [TEXT] * 2) == []


def test_the_exceptions_are_kinds_of_sources_and_of_shapes():
    assert set(BY_PASSES) <= {*SOURCES, *OTHERS, *LARGE_SHAPES}


class Own(Standard):
    """A rule of somebody else."""

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        return super().__call__(draft, target_laws)


def recorded(source: DraftSource, _: SamplingParams) -> SpeculativeDecoder:
    decoder = SpeculativeDecoder(ORACLE, source)
    decoder.randomness = lambda keys, num_committed: draft_rows.recorded(Keyed.at(keys, num_committed), len(keys))
    return decoder


def by_torch(**how: Any) -> Tally:
    with laws_by("torch"):
        return run(MODEL, by("standard"), **how)


MODEL = SmallTransformer(NATIVE.model, 3)
# What is judged the general way, a rule of ours by its name: why, and how it runs.
GENERAL: dict[str, tuple[str, Callable[..., Tally]]] = {
    "laws of another type": (
        "a float64 law beside float32 logits: compiled code reads one type, and to round would change the law",
        partial(run, SmallTransformer(SIX_IDS.model, 3), by("standard")),
    ),
    "laws of torch": ("without compiled laws there are none for compiled code to judge by", by_torch),
    "typical": ("its law is defined by torch operations alone", partial(run, MODEL, by("typical"))),
    "a rule of one's own": ("compiled code judges as our rules do", partial(run, MODEL, by(Own()))),
    "draws of one's own": ("compiled code draws by numbers, and these keep every call", partial(run, MODEL, recorded)),
}


CASES = [
    (name, rule, how)
    for name, source in EVERY.items()
    for rule in RULES
    if rule not in GENERAL and (RULES[rule].trees or not source.offers.trees)
    for how in SAMPLINGS
]
QUICK = cover(CASES, pairs_of)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("cases", [QUICK, pytest.param(CASES, marks=pytest.mark.long)], ids=["pairs", "all"])
def test_a_source_goes_the_fast_way_under_every_rule(name, cases):
    mine = [(rule, how) for source, rule, how in cases if source == name]
    assert {case: found for case in mine if (found := astray(EVERY[name], by(case[0]), samplings=[case[1]]))} == {}


@pytest.mark.parametrize("name", GENERAL)
def test_what_is_judged_the_general_way_is_so_still(name):
    reason, going = GENERAL[name]
    assert not going(sampling=SAMPLINGS["sampled"], prompts=PROMPTS).is_judged_in_one_call, f"no longer true: {reason}"


# Slow ways that nobody noticed, and others like them: what is replaced by what, then a source and a rule that it slows.
SLOW: dict[str, tuple[Any, str, Callable[..., Any], DraftSource, str]] = {
    "coupled verdicts": (Coupled, "verdict_numbers", lambda *_: None, PromptLookup(3), "coupled"),
    "chains of a model": (DraftModel, "follower", lambda *_: None, MODEL, "standard"),
    "trees of a model": (DraftModel, "grower", lambda *_: None, EVERY["shape: Kary"], "multi_draft"),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_way_is_found(name, monkeypatch):
    place, attribute, slow, source, rule = SLOW[name]
    assert astray(source, by(rule)) == []
    monkeypatch.setattr(place, attribute, slow)
    assert astray(source, by(rule)) != []
