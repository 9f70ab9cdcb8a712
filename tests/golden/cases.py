"""The golden cases: every source of the tests' registry under every legal rule, and a part that covers pairs."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import oracles
from drafts import EarlyExit
from specdec import NativeJudge, SamplingParams
from specdec.contracts import DraftSource
from specdec.engine.no_draft import NoDraft
from specdec.verify import RULES
from tests.golden.worlds import world
from tests.support.drafting.sources import RandomTrees, SiblingTrees
from tests.support.pairwise import cover
from tests.support.registry import OTHERS, SOURCES, WAYS, Models

Make = Callable[[Models], DraftSource]

BATCHES = (1, 8)
# Requests take the parameters of a list in turn. In the rule "coupled" they are drawn with shared noise.
SAMPLINGS: dict[str, Sequence[SamplingParams]] = {
    "greedy": [SamplingParams()],
    "sampled": [SamplingParams(temperature=1.0)],
    "penalties": [
        SamplingParams(
            temperature=0.8, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.4,
            logit_bias={1: 0.5}, min_new_tokens=3,
        )
    ],
    "top-p": [SamplingParams(temperature=0.9, top_p=0.8)],
    "mixed": [
        SamplingParams(),
        SamplingParams(temperature=1.2, top_k=3, min_p=0.05),
        SamplingParams(repetition_penalty=1.4, logit_bias={1: -float("inf")}),
        SamplingParams(temperature=0.7, frequency_penalty=0.5, ignore_eos=True),
    ],
}  # fmt: skip


def trained_head(models: Models) -> DraftSource:
    """Return drafts of the first layers of the checkpoint "code", read by the head that was trained for them."""
    head = oracles.load_head("code-exit", models.layered)
    return EarlyExit(models.layered, head.num_layers, head)


# Drawn trees of any form, scouts and fixed ids among their nodes: a table says what they are drawn from.
OF_TABLES: dict[str, Make] = {
    "random trees": lambda models: RandomTrees(models.model.table.numpy(), max_nodes=6),
    "sibling trees": lambda models: SiblingTrees(models.model.table.numpy(), max_nodes=6),
}
COMMON: dict[str, Make] = {"plain": lambda models: NoDraft(), **WAYS}
_LISTED = {name: make(world("table", "eager").models) for name, make in (COMMON | OF_TABLES).items()}
_BRANCHING = {name for name, source in _LISTED.items() if source.offers.trees}
_FIRST = {f"{name}: {next(iter(ways))}" for name, ways in (OTHERS | SOURCES).items()}
_CHOSEN = {"plain", *_FIRST, "policy: heuristic", "policy: moving", "policy: entropy", "n-gram shape: Kary"}
# What tables have no layers for: to draft on the target's cache, or to read its hidden states.
_OF_LAYERS = {name for name, source in _LISTED.items() if source.needs.cache_of is not None or source.needs.hidden}
# Per world: its sources.
MAKES: dict[str, dict[str, Make]] = {
    "table": {n: make for n, make in (COMMON | OF_TABLES).items() if n not in _OF_LAYERS},
    "tiny": COMMON,
    "code": {n: make for n, make in COMMON.items() if n in _CHOSEN or n.startswith("shape: ")}
    | {"EarlyExit: trained head": trained_head},
}


_WALKING = (NativeJudge.OFFERED, NativeJudge.MATCHED)
_JUDGES_OF = {"tiny": (*_WALKING, NativeJudge.STANDING), "code": _WALKING}


@dataclass(frozen=True)
class Case:
    """One run: all prompts of a world, by one source under one rule.

    Attributes:
        world: of the models, "table", "tiny" or "code".
        source: its name in ``MAKES``.
        rule: a name in ``RULES``.
        batch: rows in flight.
        sampling: a name in ``SAMPLINGS``.
    """

    world: str
    source: str
    rule: str
    batch: int
    sampling: str

    def __str__(self) -> str:
        return f"{self.world}/{self.source}/{self.rule}/{self.batch}/{self.sampling}"

    @property
    def return_logprobs(self) -> bool:
        """Whether log-probabilities are asked for, in about half of the cases."""
        return zlib.crc32(str(self).encode()) % 2 == 1

    @property
    def pairs(self) -> set[object]:
        """What occurs together: a source in its world, and its row, its way and the other values two and two."""
        row, *way = self.source.split(": ")
        values = [self.world, row, *(f"way: {name}" for name in way), self.rule, self.batch, self.sampling]
        return {(self.world, self.source), *combinations([*values, f"log-probabilities: {self.return_logprobs}"], 2)}


def _first_like(rule: str, source: str) -> str:
    """Return the first rule that judges a source's drafts by the same compiled code as one that does."""
    legal = (RULES[name] for name in RULES if RULES[name].trees or source not in _BRANCHING)
    own = RULES[rule]
    return next(one.name for one in legal if (one.native_judge, one.coupled) == (own.native_judge, own.coupled))


CASES = tuple(
    Case(world, source, rule, batch, sampling)
    for world, makes in MAKES.items()
    for source in makes
    for rule in RULES
    if RULES[rule].trees or source not in _BRANCHING
    # A rule without a compiled judge meets numbers of every kind in tables, one that looks ahead in small models too.
    # So does one whose judge another rule of the source has: outside of tables its lines would be the other's.
    if world == "table" or (RULES[rule].native_judge in _JUDGES_OF[world] and rule == _first_like(rule, source))
    for batch in BATCHES
    for sampling in SAMPLINGS
)


def covering(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return some of the cases in which all occurs together that does so in any of them: see ``Case.pairs``.

    Cases stand in an order of their own, dear ones last.
    """
    order = sorted(cases, key=lambda case: (case.world == "code", case.batch == 1, zlib.crc32(str(case).encode())))
    return tuple(cover(order, lambda case: case.pairs))
