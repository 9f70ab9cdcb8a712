"""The arms of an experiment: what decodes the same prompts, and what is kept of each run."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.harness.conversations import LaterTurn
from experiments.harness.journal import Piece
from experiments.harness.rule_choice import REJECTION, rule_for
from experiments.harness.settings import Settings
from specdec import DraftSource, NodeBudget, Oracle, Paths, Result, SamplingParams, SpeculativeDecoder
from specdec.contracts import Offers
from specdec.prompts import NamedPrompt
from specdec.requests import make_requests

PLAIN = "plain"


@dataclass(frozen=True)
class Unit(Piece):
    """A prompt, or a batch of prompts of one kind, that is measured with all arms.

    Attributes:
        index: place in the experiment; unit i starts its rounds with another arm than unit i - 1.
        numbers: places of the prompts in the experiment; they are part of the seeds.
        seed: of sampling, the same for all its prompts.
    """

    numbers: tuple[int, ...]
    seed: int = 0

    @property
    def seeds(self) -> list[tuple[int, int]]:
        """Of its prompts, by their places in the experiment."""
        return [(self.seed, number) for number in self.numbers]

    @property
    def turn(self) -> int:
        """Of the conversations of its prompts, from 1."""
        return self.prompts[0].turn


def problems_of(oracle: Oracle, prompts: Sequence[NamedPrompt], max_new_tokens: int) -> dict[int, str]:
    """Return place -> reason of the prompts that the engine would refuse, such as those beyond the oracle's context."""
    found = {}
    for number, prompt in enumerate(prompts):
        try:
            make_requests(oracle, [prompt.start], max_new_tokens, None, 0, None)
        except ValueError as error:
            found[number] = str(error).removeprefix("prompts[0] ")
    return found


def without_problems(prompts: Sequence[NamedPrompt], problems: Mapping[int, str]) -> dict[int, NamedPrompt]:
    """Return place -> prompt of those that can be decoded.

    Raises:
        ValueError: there is none.
    """
    if len(problems) == len(prompts):
        raise ValueError(f"none of the prompts can be decoded; the first, {prompts[0].name!r}, {problems[0]}")
    return {number: prompt for number, prompt in enumerate(prompts) if number not in problems}


def decodable_prompts(oracle: Oracle, prompts: Sequence[NamedPrompt], max_new_tokens: int) -> list[NamedPrompt]:
    """Return the prompts that can be decoded; the others are named on stderr, with the reason.

    Raises:
        ValueError: there is none.
    """
    problems = problems_of(oracle, prompts, max_new_tokens)
    for number, problem in problems.items():
        print(f"left out: {prompts[number].name}: {problem}", file=sys.stderr)
    return [*without_problems(prompts, problems).values()]


def units_of(
    prompts: Sequence[NamedPrompt], batch_size: int, problems: Mapping[int, str] | None = None, seed: int = 0
) -> list[Unit]:
    """Return the prompts cut into batches of one kind and turn each, later turns after all earlier ones.

    Those with problems come last, each by itself. ``seed``: of all units.

    Guarantee: the conversations that a batch continues began in one batch, so no conversation is in two clusters; a
        later batch may be smaller because of this.
    """
    problems = problems or {}
    kinds: dict[tuple[int, str], dict[int, list[int]]] = {}
    for number, first in enumerate(_first_batches(prompts, batch_size, problems)):
        if number not in problems:
            prompt = prompts[number]
            kinds.setdefault((prompt.turn, prompt.kind), {}).setdefault(first, []).append(number)
    units: list[Unit] = []
    for (_, kind), batches in kinds.items():
        for part in batches.values():
            units.append(Unit(len(units), kind, tuple(part), seed, prompts=tuple(prompts[i] for i in part)))
    for number, problem in problems.items():
        own = prompts[number]
        units.append(Unit(len(units), own.kind, (number,), seed, prompts=(own,), problem=problem))
    return units


def _first_batches(prompts: Sequence[NamedPrompt], batch_size: int, problems: Mapping[int, str]) -> list[int]:
    """Return, for each prompt, the batch of its kind in which its conversation began; below 0: one of that alone."""
    found: list[int] = []
    by_name: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, LaterTurn):
            batch = by_name.get(prompt.after, -1 - number)
        elif number in problems:
            batch = -1 - number
        else:
            batch = counts[prompt.kind] // batch_size
            counts[prompt.kind] += 1
        by_name[prompt.name] = batch
        found.append(batch)
    return found


@dataclass(frozen=True)
class Measurement:
    """One arm's run of one unit.

    Attributes:
        seconds: wall time of the whole call, prompt encoding and prefill included.
        tokens: new ids of each prompt.
        claim: "exact", "exact up to numerics" or "lossy: ..."; "another program" for a peer.
        settings: how it computed.
        result: of our engine; None for a peer.
        rule: that judged the drafts; None for a peer.
        repeats_plain: whether its tokens must be plain decoding's, as greedy and coupled ones must. If not, they are
            draws of the same law.
        rooms: the most tokens that each prompt's output may have, given the context; None for a peer.
        tree: the nodes of the tree that its source drafts, if that branches and is known beforehand.
    """

    seconds: float
    tokens: list[list[int]]
    claim: str
    settings: Settings
    result: Result | None = None
    rule: str | None = None
    repeats_plain: bool = True
    rooms: Sequence[int] | None = None
    tree: Sequence[tuple[int, ...]] | None = None


class Arm(Protocol):
    """Anything that decodes the prompts of a unit."""

    @property
    def name(self) -> str:
        """The arm's name in tables and files."""
        ...

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together and say what it took."""


class EngineArm:
    """Decode with our engine.

    Args:
        name: of the arm.
        oracle: shared by all arms.
        draft: None: plain decoding.
        sampling: of every prompt.
        rule: of ``--rule``: at a temperature above 0 all arms emit the same tokens if they are coupled, else draws of
            the same law.
        kernels, budget: see ``SpeculativeDecoder``.

    Raises:
        ValueError: the rule or the budget does not fit the source, or what it offers as its tree is none.
    """

    def __init__(
        self,
        name: str,
        oracle: Oracle,
        draft: DraftSource | None,
        sampling: SamplingParams,
        rule: str = REJECTION,
        kernels: str | None = None,
        budget: NodeBudget | None = None,
    ) -> None:
        self.name, self.sampling = name, sampling
        self.decoder = SpeculativeDecoder(oracle, draft, rule_for(rule, draft), kernels=kernels, budget=budget)
        self._tree = _tree_of(self.decoder.offers, name)

    @property
    def repeats_plain(self) -> bool:
        """Whether it must emit plain decoding's tokens: it is greedy or coupled."""
        return self.sampling.temperature == 0 or self.decoder.rule.coupled

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together and say what it took."""
        starts = [prompt.start for prompt in prompts]
        began = time.perf_counter()
        result = self.decoder.generate(starts, max_new_tokens=max_new_tokens, sampling=self.sampling, seed=list(seeds))
        seconds = time.perf_counter() - began
        rooms = rooms_of(result.records.columns(), len(prompts), max_new_tokens, self.decoder.oracle.max_context)
        settings, rule = Settings.of(self.decoder.oracle, len(prompts)), self.decoder.rule.name
        came = seconds, result.tokens, result.exactness, settings, result
        return Measurement(*came, rule, self.repeats_plain, rooms, self._tree)


def _tree_of(offers: Offers, arm: str) -> Sequence[tuple[int, ...]] | None:
    """Return the nodes of an arm's tree if it branches and is known; ValueError: it is no tree."""
    if not offers.trees or not offers.paths:
        return None
    try:
        return Paths([[int(rank) for rank in path] for path in offers.paths]).paths
    except ValueError as error:
        raise ValueError(f"{arm}: offers.paths of its source are no tree: {error}") from error


def rooms_of(records: Mapping[str, Sequence[Any]], count: int, max_new_tokens: int, max_context: int) -> list[int]:
    """Return the most tokens that each of ``count`` outputs may have, from the steps of a run.

    A request without a step was asked for no token, or has no room.
    """
    lengths: dict[int, int] = {}
    for request, num_committed in zip(records["request"], records["num_committed"], strict=True):
        lengths.setdefault(request, num_committed)
    return [min(max_new_tokens, max_context - lengths[i]) if i in lengths else 0 for i in range(count)]
