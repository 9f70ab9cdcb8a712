"""What drafts of the embedded model cost: c, a token's time over a pass of the oracle, and a level of a tree."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from drafts import SmallTransformer
from experiments.bench.oracle.benchmark_parts import BenchOptions, Measured, Part, Row
from experiments.bench.oracle.decoding import GREEDY
from experiments.bench.oracle.speculation import DRAFT, DRAFTED, TARGET, Pair
from experiments.harness.rounds import Round, TimedArm, median_seconds
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.cache import prefill
from specdec.contracts import Budget, Context, DraftSource
from specdec.sampling import BatchWarping, Keyed, ParameterTable, seed_keys
from specdec.stats import Stats

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)
SAMPLINGS = {"greedy": GREEDY, "sampled, top-p 0.95": SAMPLED}
PASS, STEP = f"pass of {TARGET}", f"plain step of {TARGET}"


def _run(pair: Pair, source: DraftSource | None, sampling: SamplingParams, num_new: int) -> Stats:
    return SpeculativeDecoder(pair.target, source).generate(pair.prompts, num_new, sampling, batch_size=1).stats


def _plain(pair: Pair, phases: tuple[str, ...], num_new: int) -> Round:
    """Time some phases of plain greedy decoding, a step."""
    return Round(_run(pair, None, GREEDY, num_new).seconds_per_call(*phases) or 0.0)


def _propose_seconds(pair: Pair, source: DraftSource, sampling: SamplingParams, num_new: int) -> Round:
    """Time proposing a token: the draft model's passes, laws, draws and bookkeeping."""
    stats = _run(pair, source, sampling, num_new)
    return Round(stats.seconds["propose"] / stats.num_draft_passes)


def arms(pair: Pair, options: BenchOptions) -> list[TimedArm]:
    """Return the oracle's pass, its plain step, and a drafted token of every sampling."""
    num_new, source = options.new_tokens, SmallTransformer(pair.drafts[DRAFT], DRAFTED)
    found = [
        TimedArm(PASS, partial(_plain, pair, ("score",), num_new)),
        TimedArm(STEP, partial(_plain, pair, ("propose", "score", "verify", "commit"), num_new)),
    ]
    for name, sampling in SAMPLINGS.items():
        found.append(TimedArm(f"token, {name}", partial(_propose_seconds, pair, source, sampling, num_new)))
    return found


def rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per figure."""
    for name in (PASS, STEP, *(f"token, {sampling}" for sampling in SAMPLINGS)):
        cells = {"over a pass (c)": measured.ratio(name, PASS), "over a plain step": measured.ratio(name, STEP)}
        yield {**measured.time_row(name, what=name), **cells}


PART = Part(
    "Cost of a drafted token", "pair", arms, rows,
    f"`{DRAFT}` drafts {DRAFTED} tokens a step for `{TARGET}` on shipped prompts, batch 1. A token: the time of "
    "proposing over the tokens proposed; a pass: the time of scoring in plain decoding, over its steps.",
)  # fmt: skip


SHAPE = Kary(2, 3)


class Levels:
    """Rows that hold prompts, for which the same tree is drafted again and again.

    Args:
        pair: its draft model drafts.
        batch: rows.
    """

    def __init__(self, pair: Pair, batch: int) -> None:
        self._model, self._rows = pair.drafts[DRAFT], np.arange(batch)
        prompts = [np.array(pair.prompts[row % len(pair.prompts)]) for row in range(batch)]
        self._ends = np.array([len(prompt) for prompt in prompts])
        self._ids = np.zeros((batch, self._ends.max()), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            self._ids[row, : len(prompt)] = prompt
        capacity = int(self._ends.max()) + SHAPE.num_nodes + 1
        self._session = SmallTransformer(self._model, tree=SHAPE).open(pair.target, batch, capacity)
        self._session.begin(self._rows, prompts, None)
        self._cache = self._model.new_cache(batch, capacity)
        prefill(self._model, self._cache, self._rows, prompts)

    def draft(self, sampling: SamplingParams, repeats: int) -> Round:
        """Time a level of proposing."""
        batch, ends = len(self._rows), self._ends
        warping = BatchWarping(ParameterTable.of([sampling] * batch), self._ids, ends, ends, ())
        context, streams = Context(self._ids, ends, warping), Keyed.at(seed_keys(range(batch)), ends)
        budget = Budget(np.full(batch, SHAPE.max_depth), np.full(batch, SHAPE.max_nodes))
        propose = partial(self._session.propose, self._rows, context, budget, streams)
        return Round(median_seconds(propose, repeats) / SHAPE.max_depth)

    def score(self, repeats: int) -> Round:
        """Time the passes that a tree takes: of the pending token, then of each level's nodes; the mean."""
        planned = SHAPE.plan(np.array([SHAPE.max_depth]), np.array([SHAPE.max_nodes]))
        assert planned is not None
        plan = planned[0]
        above = plan.owners[np.unique(plan.parents)[1:]] - 1  # of the nodes that have children
        seconds, batch, first = 0.0, len(self._rows), 0
        for depth in range(SHAPE.max_depth):
            width = int((plan.depths[1:] <= depth).sum()) if depth else 1
            parents = torch.from_numpy(np.tile(above[:width], (batch, 1))) if depth else None
            tokens, nodes = torch.ones(batch, width, dtype=torch.int64), torch.full((batch,), width)
            call = partial(self._model.score, tokens, parents, nodes, self._cache, self._rows)
            seconds += median_seconds(partial(call, "all" if depth else "last", (), first), repeats)
            first = width if depth else 0
        return Round(seconds / SHAPE.max_depth)


def level_arms(pair: Pair, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield bare passes, and levels of every sampling, for every batch size."""
    for batch in options.batches:
        levels = Levels(pair, batch)
        yield TimedArm(f"pass, batch {batch}", partial(levels.score, options.repeats))
        for name, sampling in SAMPLINGS.items():
            yield TimedArm(f"level, {name}, batch {batch}", partial(levels.draft, sampling, options.repeats))


def level_rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per batch size and figure."""
    for batch in measured.options.batches:
        for name in ("pass", *(f"level, {sampling}" for sampling in SAMPLINGS)):
            over = measured.ratio(f"{name}, batch {batch}", f"pass, batch {batch}")
            yield {**measured.time_row(f"{name}, batch {batch}", what=name, batch=batch), "over a pass": over}


LEVELS = Part(
    "Cost of a drafted tree level", "pair", level_arms, level_rows,
    f"`{DRAFT}` drafts {SHAPE} on shipped prompts. A level: the time of proposing over the levels, what is drawn or "
    "ranked included; a pass: the mean time of bare passes of as many nodes, one for each level.",
)  # fmt: skip
