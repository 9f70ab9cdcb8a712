"""An experiment written by hand: what two arms did with three prompts in two rounds, step by step.

Its journal comes from the harness, with arms that say what stands here in place of a model. A test works the columns of
a table out from the same steps, by sums in plain Python.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from experiments.harness.arms import PLAIN, Arm, Measurement, units_of
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import measure
from experiments.harness.settings import Settings
from specdec import Result
from specdec.contracts import StepInfo
from specdec.prompts import NamedPrompt
from specdec.requests import FinishReason
from specdec.stats import Records, Stats, StatsRecorder
from tests.support.runs.hand_steps import chain_step

DRAFTED, PEER = "drafted", "peer"
PHASES = ("propose", "score", "verify", "commit")
# Most tokens of an output; the longest draft; ids of a prompt.
NEW, LONGEST, PROMPT = 8, 3, 5
# Of all times, so that figures are of a size that tables print.
SECOND = 2.0**-7
# Before the first step and between steps, of a run; and beside all that statistics know of: a prompt's encoding.
PREFILL, OTHER, BESIDE = 3.0, 1.0, 0.5 * SECOND
# By round: an arm is never as fast twice.
PACE = {PLAIN: (1.0, 1.5), DRAFTED: (1.0, 0.5), PEER: (1.0, 1.25)}


@dataclass(frozen=True)
class Text:
    """An output, and the drafts of the drafting arm on its way: (drafted, accepted) of each step."""

    kind: str
    tokens: tuple[int, ...]
    drafts: tuple[tuple[int, int], ...]
    number: int = 0

    @property
    def name(self) -> str:
        return f"p{self.number}"


# The first ends by its EOS, the others by their length; the last one runs into a loop, amid a step
# of the drafting arm.
TEXTS = (
    Text("code", (10, 11, 12, 13, 14, 15), ((3, 2), (3, 0), (2, 0), (1, 0)), 0),
    Text("code", (20, 21, 22, 23, 24, 25, 26, 27), ((3, 3), (0, 0), (2, 1), (0, 0)), 1),
    Text("chat", (30, 31, 32, 9, 9, 9, 9, 9), ((3, 0), (3, 3), (2, 1), (0, 0)), 2),
)


def texts(count: int) -> list[Text]:
    """Return so many texts: the three, again and again."""
    return [replace(text, number=number) for number, text in enumerate(islice(cycle(TEXTS), count))]


@dataclass(frozen=True)
class Row:
    """A request's part of a step: how many tokens stood before, its draft, and what it emitted."""

    request: int
    before: int
    drafted: int
    accepted: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A step of all rows in flight, and its seconds by phase."""

    rows: tuple[Row, ...]
    seconds: dict[str, float]

    @property
    def depth(self) -> int:
        return max(row.drafted for row in self.rows)

    @property
    def emitted(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True)
class HandRun:
    """What an arm did with a unit in one round."""

    arm: str
    texts: tuple[Text, ...]
    pace: float
    steps: tuple[Step, ...]

    @property
    def prefill(self) -> float:
        return PREFILL * len(self.texts) * self.pace

    @property
    def other(self) -> float:
        return OTHER * self.pace

    @property
    def seconds(self) -> float:
        """That its statistics know of."""
        return self.prefill + self.other + sum(sum(step.seconds.values()) for step in self.steps)

    @property
    def wall(self) -> float:
        return self.seconds + BESIDE

    @property
    def rows(self) -> list[Row]:
        return [row for step in self.steps for row in step.rows]

    def phase(self, *names: str) -> float:
        return sum(step.seconds[name] for step in self.steps for name in names)


def _rows(arm: str, some: Sequence[Text]) -> list[tuple[Row, ...]]:
    """Return the rows of each step: a request leaves the batch after its last one."""
    found: list[list[Row]] = []
    for request, text in enumerate(some):
        before = 0
        for number, (drafted, accepted) in enumerate(text.drafts if arm == DRAFTED else [(0, 0)] * len(text.tokens)):
            found += [[]] if number == len(found) else []
            row = Row(request, before, drafted, accepted, text.tokens[before : before + accepted + 1])
            found[number].append(row)
            before += accepted + 1
    return [tuple(rows) for rows in found]


def _seconds(arm: str, rows: Sequence[Row], pace: float) -> dict[str, float]:
    depth = max(row.drafted for row in rows)
    propose, verify = (0.5 + 0.5 * depth, 0.75) if arm == DRAFTED else (0.125, 0.5)
    score = 4.0 + 0.25 * (len(rows) * (1 + depth) - 1)
    return {"propose": pace * propose, "score": pace * score, "verify": pace * verify, "commit": pace * 0.25}


def run_of(arm: str, some: Sequence[Text], round_: int) -> HandRun:
    """Return what an arm does with some texts, a batch, in a round; later texts take longer."""
    pace = SECOND * PACE[arm][round_ % 2] * (1 + some[0].number / 4)
    steps = tuple(Step(rows, _seconds(arm, rows, pace)) for rows in _rows(arm, some))
    return HandRun(arm, tuple(some), pace, steps)


def info_of(step: Step, arm: str) -> StepInfo:
    """Return a step as the engine would tell it."""
    rows, width = step.rows, 1 + step.depth
    columns = ([getattr(row, name) for row in rows] for name in ("request", "before", "drafted", "accepted"))
    request, before, drafted, accepted = columns
    tokens = np.full((len(rows), 1 + LONGEST), -1)
    for at, row in enumerate(rows):
        tokens[at, : len(row.tokens)] = row.tokens
    # The budget leaves room for the token after the draft.
    room = NEW - np.array(before) - 1
    return replace(
        chain_step(request, [PROMPT + count for count in before], drafted, accepted),
        shortened=room < (LONGEST if arm == DRAFTED else 0),
        tokens=tokens,
        seconds=dict(step.seconds),
        num_nodes=width,
    )


def stats_of(run: HandRun) -> Stats:
    """Return the statistics of a run, each request's among them."""
    elapsed, recorder = run.prefill, StatsRecorder(len(run.texts))
    recorder.add_prefill(run.prefill, np.arange(len(run.texts)))
    for step in run.steps:
        elapsed += sum(step.seconds.values())
        recorder.infos.append(info_of(step, run.arm))
        recorder.elapsed.append(elapsed)
    return recorder.finish(run.seconds, cache_bytes=1_500_000, weight_bytes=2_500_000)


def measurement(run: HandRun) -> Measurement:
    """Return what an arm of ours would have measured."""
    settings = Settings("eager", "float32", "cpu", None, len(run.texts), 1)
    tokens = [list(text.tokens) for text in run.texts]
    ends: list[FinishReason] = ["length" if len(text.tokens) == NEW else "eos" for text in run.texts]
    judge = "native: standard" if run.texts[0].kind == "code" else "standard"
    records = Records([info_of(step, run.arm) for step in run.steps])
    result = Result(
        tokens, None, ends, stats_of(run), records, None, [], "exact", "eager", judge, f"native: {run.arm}", "native"
    )
    return Measurement(run.wall, tokens, "exact", settings, result, "standard", True, [NEW] * len(run.texts))


class HandArm:
    """An arm that says what stands here."""

    def __init__(self, name: str, known: Sequence[Text]) -> None:
        self.name, self._texts = name, {text.name: text for text in known}
        self._rounds: Counter[str] = Counter()

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Return the next round of a unit."""
        some = [self._texts[prompt.name] for prompt in prompts]
        run = run_of(self.name, some, self._rounds[some[0].name])
        self._rounds[some[0].name] += 1
        if self.name != PEER:
            return measurement(run)
        return replace(measurement(run), result=None, claim="another program")


@dataclass(frozen=True)
class Hand:
    """The experiment: its outcome, and the runs that it came from."""

    outcome: Outcome
    units: tuple[tuple[Text, ...], ...]
    rounds: int

    def runs(self, arm: str, kind: str = "all") -> list[HandRun]:
        """Return the runs of an arm, round by round of each unit."""
        return [run for unit in self.by_unit(arm, kind) for run in unit]

    def by_unit(self, arm: str, kind: str = "all") -> list[list[HandRun]]:
        """Return the rounds of each unit of a kind."""
        chosen = [unit for unit in self.units if kind in ("all", unit[0].kind)]
        return [[run_of(arm, unit, round_) for round_ in range(self.rounds)] for unit in chosen]

    def stats(self, arm: str) -> Stats:
        """Return the statistics of an arm of ours."""
        found = self.outcome.stats(arm)
        assert found is not None
        return found


def hand(count: int = 3, rounds: int = 2, batch: int = 1, with_peer: bool = False) -> Hand:
    """Return the experiment with so many prompts, rounds and rows."""
    known = texts(count)
    prompts = [NamedPrompt(text.name, text.kind, text.name) for text in known]
    arms: list[Arm] = [HandArm(name, known) for name in (PLAIN, DRAFTED, *([PEER] if with_peer else []))]
    units = units_of(prompts, batch)
    entries = [measure(unit, arms, NEW, rounds) for unit in units]
    chosen = tuple(tuple(known[number] for number in unit.numbers) for unit in units)
    return Hand(Outcome([arm.name for arm in arms], entries), chosen, rounds)
