"""The tables of scripts of their own: Spec-Bench, lengths, rules, forced positions, vocabularies, replays."""

from collections.abc import Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from experiments import replay, threshold
from experiments.bench import stored
from experiments.bench.oracle.llama_cpp_arm import MAX_BATCH
from experiments.harness.arms import PLAIN, Measurement
from experiments.harness.rounds import Timings
from experiments.harness.settings import Settings
from experiments.spec_bench import spec_bench_tables
from experiments.spec_bench.spec_bench_tables import tables_of
from experiments.studies import json_answers, overlap, rules, second_turns
from specdec import Calibration, SamplingParams
from specdec.drafting import SharedPieces
from specdec.prompts import NamedPrompt
from specdec.stats import Stats
from specdec.stats.report.intervals import Interval, paired_ratio
from specdec.traces import Replay
from tests.support.line_mutants import Differences, LineMutant, differences
from tests.support.models.counting import letters
from tests.support.runs.hand_clock import clock_of
from tests.support.runs.hand_run import DRAFTED, HandRun, hand
from tests.support.runs.units import arm_of


def _decoding(runs: Sequence[HandRun]) -> float:
    return sum(run.seconds - run.prefill for run in runs)


def _speed(turns: Sequence[Sequence[HandRun]]) -> float:
    """Return the tokens per second of a question's turns, each the mean of its rounds."""
    tokens = sum(sum(step.emitted for step in rounds[0].steps) for rounds in turns)
    return tokens / sum(fmean(run.wall for run in rounds) for rounds in turns)


def questions() -> Differences:
    """Spec-Bench's tables of two questions: one of two turns, of two of its categories that are one task."""
    made = hand()
    for entry, kind in zip(made.outcome.entries, ("writing", "qa", "stem"), strict=True):
        entry["kind"] = kind
    made.outcome.done[2]["began"] = made.outcome.done[0]["unit"]
    decoding, whole = ({row["task"]: row for row in table.rows} for table in tables_of(made.outcome))
    plain, own = made.by_unit(PLAIN), made.by_unit(DRAFTED)
    speeds = [(_speed([unit[0], unit[2]]), _speed([unit[1]])) for unit in (plain, own)]
    of_task = [[*unit[0], *unit[2]] for unit in (plain, own)]
    found = {
        "tasks": [*decoding],
        "decoding alone": decoding["mt_bench"]["decoding alone"],
        "accepted": (decoding["mt_bench"]["accepted"], decoding["overall"]["accepted"]),
        "in loops": decoding["mt_bench"]["in loops"],
        "tokens/s alone": (decoding["mt_bench"]["tokens/s"], decoding["mt_bench"]["plain"]),
        "end to end": whole["mt_bench"]["end to end"],
        "ratio": (whole["mt_bench"]["Spec-Bench ratio"], whole["overall"]["Spec-Bench ratio"]),
        "tokens/s": (whole["overall"]["tokens/s"], whole["overall"]["plain"]),
        "counts": [(row["questions"], row["answers"]) for row in whole.values()],
    }
    expected = {
        "tasks": ["mt_bench", "qa", "overall"],
        "decoding alone": f"{_decoding(of_task[0]) / _decoding(of_task[1]):.2f} (n = 1)",
        # Six and eight tokens in four steps each; eight more in four.
        "accepted": (f"{14 / 8:.2f} (n = 1)", f"{22 / 12:.2f} (n = 2)"),
        "in loops": f"{5 / 14:.1%}",
        "tokens/s alone": tuple(2 * 14 / _decoding(of_task[at]) for at in (1, 0)),
        "end to end": f"{sum(r.wall for r in of_task[0]) / sum(r.wall for r in of_task[1]):.2f} (n = 1)",
        "ratio": (
            f"{speeds[1][0] / speeds[0][0]:.2f} (n = 1)",
            f"{sum(speeds[1]) / sum(speeds[0]):.2f} (n = 2)",
        ),
        "tokens/s": (fmean(speeds[1]), fmean(speeds[0])),
        "counts": [(1, 2), (1, 1), (2, 3)],
    }
    return differences(found, expected)


class _Lengths:
    """What plain decoding, two fixed lengths and a policy did: the shorter length is the faster one."""

    arms = (PLAIN, "fixed 1", "fixed 2", threshold.NAME)
    _SECONDS: ClassVar = {PLAIN: 12.0, "fixed 1": 6.0, "fixed 2": 8.0, threshold.NAME: 3.0}

    def speedup(self, arm: str, against: str = PLAIN) -> Interval:
        return Interval(self._SECONDS[against] / self._SECONDS[arm], None, None, 1)

    def stats(self, arm: str) -> Stats:
        """Four steps: one without a draft, two of one token, one of two, which stood."""
        return Stats(num_steps=4, num_emitted=9, num_drafted=4, num_accepted=2, steps_by_depth=(1, 2, 1))

    def calibrations(self, arm: str) -> list[dict[str, Any]]:
        return [{"of": arm}]


def policies() -> Differences:
    """Each policy beside the best fixed length, and what its steps cost by the calibration."""
    outcome: Any = _Lengths()
    prices = {threshold.NAME: SimpleNamespace(step_cost=lambda drafted: 1.0 + 0.25 * drafted)}
    with patch.object(Calibration, "from_dict", lambda kept: prices[kept["of"]]):
        (table,) = threshold.compare_with_fixed(outcome)
    found = {row["arm"]: [*row.values()][1:] for row in table.rows}
    # 1 + 2 x 1.25 + 1.5 plain steps for nine tokens.
    own = [9 / 5.0, 9 / 4, 4 / 4, 2 / 4]
    over = {"fixed 1": "1", "fixed 2": "0.75 (n = 1)", threshold.NAME: "2.00 (n = 1)"}
    expected = {arm: [one, *own] for arm, one in over.items()}
    return differences({**found, "title": [*table.rows[0]][1]}, {**expected, "title": "over best (fixed 1)"})


class _Answering:
    """An arm whose answers, passes and seconds are known: the second run of an answer is twice as fast.

    Its very first run takes ten times as long: it is to warm up.
    """

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.answered = name, 0

    def run(self, prompts: Sequence[Any], seeds: Any, max_new_tokens: int) -> Measurement:
        self.answered += 1
        pace = 10.0 if self.answered == 1 else 0.5 if self.answered % 2 else 1.0
        whole = self.name != "wrong" or self.answered > 3
        steps = [[1], [2], [3], [4]] if self.name == PLAIN else [[1, 2], [3, 4]] if whole else [[1], [2]]
        kept = arm_of([(tokens, pace) for tokens in steps], 5.0 * pace)
        settings, columns = Settings("eager", "float32", "cpu", None, 1, 1), {"step": [*range(len(steps))]}
        columns |= kept["records"]
        result: Any = SimpleNamespace(
            stats=Stats.from_dict(kept["stats"]), records=SimpleNamespace(columns=lambda: columns), calibration=None,
            finish_reasons=None, judge=None, drafter=None, kernels=None,
        )  # fmt: skip
        tokens = [token for step in steps for token in step]
        return Measurement(kept["seconds"][0], [tokens], "exact", settings, result)


def answers() -> Differences:
    """Forced positions: shares of positions, passes and tokens, times without prompts."""
    ways: dict[str, Any] = {name: name for name in (PLAIN, "right", "wrong")}
    options = SimpleNamespace(near=4, num_prompts=2, repeats=2, max_new_tokens=8)
    with (
        patch.object(json_answers, "arms", lambda near: ways),
        patch.object(json_answers, "EngineArm", _Answering),
        patch.object(json_answers, "counts_of_choices", lambda *_: np.array([1, 1, 4, 5, 2, 9, 1, 1])),
    ):
        oracle: Any = None
        outcome, counts = json_answers.measure(oracle, {"type": "object"}, options)
    rows = {row["arm"]: row for row in json_answers.rows_of("short", outcome, counts, 4)}
    grammar = SimpleNamespace(allowed_ids=lambda ids: None if len(ids) == 1 else np.arange(9) <= len(ids))
    with patch.object(json_answers, "make_grammars", lambda *_: (grammar,)):
        model: Any = None
        choices = json_answers.counts_of_choices(model, SamplingParams(), [[7, 7, 7], [7, 7]]).tolist()
    found = {
        "tau": [rows[arm]["tau"] for arm in ways],
        "speed-up": [rows[arm]["speed-up"] for arm in ways],
        "shares": (rows["right"]["forced"], rows["right"]["nearly"]),
        "differ": [rows[arm]["differ"] for arm in ways],
        "choices": choices,
    }
    expected = {
        "tau": ["1.00", "2.00", "1.50"],
        # Four seconds and then two, of each of two answers; half of that if drafted. Of two tokens in place of four
        # plain decoding's take three seconds.
        "speed-up": ["1.00 (n = 2)", "2.00 (n = 2)", "1.50 (n = 2)"],
        "shares": ("50%", "25%"),
        "differ": [0, 0, 1],
        "choices": [1, 0, 3, 1, 0],
    }
    return differences(found, expected)


def vocabularies() -> Differences:
    """Two vocabularies: common pieces, their lengths and runs, and how a model spells the others."""
    model, target = letters(("a", "b", "é")), letters(("a", "é", "x", "ab"))
    shared = SharedPieces(model, 3, target, 4)
    texts = ["aéxa", "éé"]
    with patch.object(overlap, "spell_ids", lambda row, shared: [*row, 0, 0]):
        row = overlap.text_row("of", texts, target, shared)
    found = {**overlap.pieces_row("target", target, 2), **row}
    expected = {
        "tokenizer": "target",
        "ids": "4",
        "common": "83.3%",
        "bytes of a piece": f"{(1 + 2 + 1 + 2) / 4:.2f}",
        "prompts": "of",
        "ids of the target": "6",
        # Runs of two, one and two ids.
        "mean run of common ids": f"{5 / 3:.2f}",
        "ids of the model for one": f"{(6 + 2 * 2) / 6:.2f}",
    }
    found |= {"share": overlap.pieces_row("target", target, 2)["common"]}
    return differences(found, {**expected, "share": "2 (50.0%)"})


def judged() -> Differences:
    """Two rules on the same drafts of two prompts: what they keep, beside each other and beside the optimum."""

    def kept(own: float, other: float, first: float, more: float, bound: float | None) -> rules.KeptTokens:
        return rules.KeptTokens({"standard": own, "block": other}, {"standard": first, "block": more}, bound)

    steps = [[kept(1.0, 1.5, 0.5, 0.75, 1.0), kept(0.0, 0.5, 0.25, 0.25, None)], [kept(2.0, 2.0, 1.0, 1.0, 1.0)]]
    run = SimpleNamespace(judge="native", stats=SimpleNamespace(block_efficiency=1.75))
    anything: Any = None
    with (
        patch.object(rules, "measure", lambda *_: steps),
        patch.object(rules, "SpeculativeDecoder", lambda *_: SimpleNamespace(generate=lambda *_, **__: run)),
    ):
        own, block = rules.rows_of(anything, anything, "standard", [], {})
    expected = {
        "rule": "block",
        "judge": "native",
        # A token of the target's for each of three steps.
        "tokens a step": (3 + 4.0) / 3,
        "over": str(paired_ratio([2 + 2.0, 1 + 2.0], [2 + 1.0, 1 + 2.0])),
        "first": (0.75 + 0.25 + 1.0) / 3,
        # Of the two steps whose optimum is known.
        "of the optimum": str(paired_ratio([0.75, 1.0], [1.0, 1.0])),
        "tau run": 1.75,
    }
    return differences({**block, "leading": own["over"]}, {**expected, "leading": "1.00 (n = 2)"})


def stored_file() -> Differences:
    """A model's file beside other storages: times of two rounds."""
    kinds = {"decode": ([0.5, 0.25], [1.0, 1.5]), "prompt": ([2.0, 4.0], [8.0, 4.0])}
    kinds |= {str(w): ([0.001 * w, 0.003 * w], [0.004 * w, 0.006 * w]) for w in stored.WIDTHS}
    seconds = {
        f"{kind}, {arm}": pair[at] for kind, pair in kinds.items() for at, arm in enumerate((stored.BASE, stored.FILE))
    }
    told: Any = stored.tables(Timings(seconds), [stored.BASE, stored.FILE], 64, 100)
    (own, calls), (own_passes, passes) = (table.rows for table in told)
    found = {**calls, **passes, "own": [*own.values()], "own passes": [*own_passes.values()]}
    expected = {
        "arm": stored.FILE,
        "tokens/s": "0.8",
        "time over ours, int8": "4.00 (2.00 .. 6.00)",
        f"prompt of {MAX_BATCH}, ms": "6000.0",
        "over ours, int8": "2.50 (1.00 .. 4.00)",
        **{f"{w} nodes, ms": f"{5.0 * w:.2f}" for w in stored.WIDTHS},
        **{f"{w} over ours, int8": "3.00 (2.00 .. 4.00)" for w in stored.WIDTHS},
        "t(8)/t(1)": "8.00 (8.00 .. 8.00)",
        "own": [stored.BASE, "2.7", "1", "3000.0", "1"],
        "own passes": [stored.BASE, "2.00", "16.00", "32.00", "1", "1", "1", "8.00 (8.00 .. 8.00)"],
    }
    return differences(found, expected)


def replayed() -> Differences:
    """A replay beside its run: tokens a step of both, drafts of the run, and whether every step is the run's."""
    told = {
        "request": [1, 0, 0],
        "num_committed": [4, 7, 5],
        "num_drafted": [2, 1, 3],
        "num_accepted": [2, 1, 2],
        "num_emitted": [3, 1, 3],
    }

    def row(**others: Any) -> dict[str, Any]:
        columns = {
            "request": [0, 0, 1],
            "num_drafted": [3, 1, 2],
            "num_accepted": [2, 0, 2],
            "num_emitted": [3, 1, 3],
            **others,
        }
        made = Replay({name: np.array(values) for name, values in columns.items()}, "exact")
        stats = SimpleNamespace(block_efficiency=7 / 3, num_drafted=6, num_steps=3, total_seconds=2.0)
        result = SimpleNamespace(records=SimpleNamespace(columns=lambda: told), stats=stats)
        with (
            clock_of(replay) as clock,
            patch.object(replay, "replay", lambda dense, length: clock.spend(0.5) or made),  # type: ignore[func-returns-value]
            patch.object(replay, "SpeculativeDecoder", lambda *_: SimpleNamespace(generate=lambda *_: result)),
        ):
            dense: Any = SimpleNamespace(repeats=True)
            asked = {"rule": "coupled", "max_new_tokens": 8, "sampling": None}
            choices: Any = {"fixed 3": 3}
            oracle: Any = None
            return next(replay.rows_of("lookup", oracle, lambda _: oracle, dense, "length", choices, [], asked))

    # What the last step of request 0 accepted beyond its output's end is left out.
    expected = {
        "source": "lookup",
        "length": "fixed 3",
        "tau replayed": 2.3333,
        "tau run": 2.3333,
        "drafted/step": 2.0,
        "same steps": "yes",
        "replay s": 0.5,
        "run s": 2.0,
    }
    found = row()
    others = {"drafted": {"num_drafted": [3, 1, 1]}, "accepted": {"num_accepted": [1, 0, 2]}}
    found |= {f"other {name}": row(**changed)["same steps"] for name, changed in others.items()}
    return differences(found, expected | {f"other {name}": "no" for name in others})


class _Remembering:
    """A decoder whose second turns hold 120 and 80 tokens; if it shares, 60 and 30 of them are known."""

    def __init__(self, sharing: bool) -> None:
        self.sharing = sharing

    def generate(self, prompts: Sequence[Sequence[Any]], *_: Any) -> Any:
        (said,) = prompts
        is_long = said[0]["content"] == "long"
        known = (60 if is_long else 30) * (self.sharing and len(said) == 3)
        seconds = (0.25 if self.sharing else 1.0) * (3 if is_long else 1)
        stats = SimpleNamespace(
            num_prefix_tokens=known, num_draft_prefix_tokens=known // 3, first_token_seconds=seconds * len(said)
        )
        length = (120 if is_long else 80) * (len(said) == 3)
        return SimpleNamespace(stats=stats, tokens=[[7, len(said)]], records=[{"num_committed": length}])


def remembered() -> Differences:
    """Second turns: tokens of their prompts, how many are read, and times to their first tokens."""
    asked = {name: ({"role": "user", "content": name},) for name in ("long", "short")}
    prompts = [NamedPrompt(name, "writing", name, messages, ("more",)) for name, messages in asked.items()]
    with patch.object(second_turns, "SpeculativeDecoder", lambda *_, prefix_sharing: _Remembering(prefix_sharing)):
        oracle: Any = None
        alone, shared = second_turns.rows_of("small_transformer", second_turns.measure(oracle, None, prompts, 8))
    found = {
        "prompt": (alone["prompt"], shared["prompt"]),
        "read": (alone["read"], shared["read"]),
        "by the draft": (alone["by the draft"], shared["by the draft"]),
        "first ms": (alone["first ms"], shared["first ms"]),
        "ratio": (alone["ratio"], shared["ratio"]),
    }
    expected = {
        "prompt": ("100", "100"),
        "read": ("100", "55"),
        "by the draft": ("100", "85"),
        # Nine and three seconds, and a quarter of these.
        "first ms": ("6000.0", "1500.0"),
        "ratio": ("", "4.00 (n = 2)"),
    }
    return differences(found, expected)


STATISTICS = (questions, policies, answers, vocabularies, judged, stored_file, replayed, remembered)
MUTANTS = [
    LineMutant(*row)
    for row in (
        (spec_bench_tables.decoding_row, "outcome.block_efficiency(arm, kind)", "found", questions, "accepted"),
        (spec_bench_tables._decoding_speed, "1 / decoding", "decoding", questions, "tokens/s alone"),
        (spec_bench_tables._speed, "sum(fmean(", "sum(sum(", questions, "tokens/s"),
        (spec_bench_tables.question_speeds, "outcome.clusters(kind)", "outcome.clusters()", questions, "ratio"),
        (
            spec_bench_tables.spec_bench_ratio,
            "paired_ratio(own, plain)",
            "paired_ratio(plain, own)",
            questions,
            "ratio",
        ),
        (spec_bench_tables.end_to_end_row, ' if "began" not in entry', "", questions, "counts"),
        (spec_bench_tables.by_task, "in MT_BENCH", "in MT_BENCH[:1]", questions, "tasks"),
        (threshold.compare_with_fixed, "best = max(fixed", "best = min(fixed", policies, "title"),
        (json_answers.measure, "options.repeats", "1", answers, "speed-up"),
        (json_answers.measure, "running.warm_up(ways, units[0])", "pass", answers, "speed-up"),
        (json_answers.rows_of, "outcome.decoding_speedup(arm)", "outcome.speedup(arm)", answers, "speed-up"),
        (json_answers.counts_of_choices, "ids[:at]", "ids[: at + 1]", answers, "choices"),
        (second_turns.second_turn, "[*prompt.messages, ", "[", remembered, "read"),
        (second_turns.rows_of, "turns.tokens / count", "turns.tokens", remembered, "prompt"),
        (overlap.pieces_row, "common / size", "common / len(contents + [b''])", vocabularies, "share"),
        (overlap.text_row, "groupby(row) if common", "groupby(row)", vocabularies, "mean run of common ids"),
        (rules.rows_of, "name: counts + np", "name: np", judged, "tokens a step"),
        (stored.tables, 'over("prompt", name)', 'over("decode", name)', stored_file, "over ours, int8"),
        (replay.rows_of, "replayed.block_efficiency", "result.stats.num_steps", replayed, "tau replayed"),
        (
            replay.same_steps,
            '(columns["num_committed"], columns["request"])',
            '(columns["num_committed"],)',
            replayed,
            "same steps",
        ),
    )
]
