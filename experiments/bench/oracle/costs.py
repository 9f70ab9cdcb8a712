"""c: what a token of the embedded draft model costs, everything included, over a pass of the oracle."""

from collections.abc import Iterator
from functools import partial

from drafts import SmallTransformer
from experiments.bench.oracle.benchmark_parts import BenchOptions, Goal, Measured, Part, Row, goals_of
from experiments.bench.oracle.decoding import GREEDY
from experiments.bench.oracle.rounds import TimedArm
from experiments.bench.oracle.speculation import DRAFT, DRAFTED, TARGET, Pair
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from specdec.stats import Stats

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)
SAMPLINGS = {"greedy": GREEDY, "sampled, top-p 0.95": SAMPLED}
PASS, STEP = f"pass of {TARGET}", f"plain step of {TARGET}"
AT_MOST = {"greedy": ("at most 0.15", "0.10"), "sampled, top-p 0.95": ("at most 0.30", "0.20")}


def _run(pair: Pair, source: DraftSource | None, sampling: SamplingParams, num_new: int) -> Stats:
    return SpeculativeDecoder(pair.target, source).generate(pair.prompts, num_new, sampling, batch_size=1).stats


def _plain(pair: Pair, phases: tuple[str, ...], num_new: int) -> tuple[float, None]:
    """Return the seconds that some phases of plain greedy decoding take a step."""
    return _run(pair, None, GREEDY, num_new).seconds_per_call(*phases) or 0.0, None


def _propose_seconds(pair: Pair, source: DraftSource, sampling: SamplingParams, num_new: int) -> tuple[float, None]:
    """Return the seconds of proposing a token: the draft model's passes, laws, draws and bookkeeping."""
    stats = _run(pair, source, sampling, num_new)
    return stats.seconds["propose"] / stats.num_draft_passes, None


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


def goals(measured: Measured) -> Iterator[Goal]:
    """Yield c by sampling."""
    for name in SAMPLINGS:
        what = f"c of a {DRAFT} token over a {TARGET} pass, {name}"
        yield from goals_of(what, AT_MOST, name, measured.ratio(f"token, {name}", PASS))


PART = Part(
    "Cost of a drafted token", "pair", arms, rows, goals,
    f"`{DRAFT}` drafts {DRAFTED} tokens a step for `{TARGET}` on shipped prompts, batch 1. A token: the time of "
    "proposing over the tokens proposed; a pass: the time of scoring in plain decoding, over its steps.",
)  # fmt: skip
