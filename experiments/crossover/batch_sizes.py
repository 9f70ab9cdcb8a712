"""One batch size after the other: plain decoding and drafts of each length on the same prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.advise.calibrating import outcome_of
from experiments.advise.cells import LENGTH
from experiments.crossover.step_parts import ENOUGH, StepParts, in_flight, predict, step_times
from experiments.harness.arguments import settings_of
from experiments.harness.arms import PLAIN, EngineArm
from experiments.harness.building import build_shared
from experiments.harness.rule_choice import judging_of
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, Outcome
from specdec import Oracle, SamplingParams
from specdec.calibration_run import pass_seconds
from specdec.prompts import NamedPrompt
from specdec.theory import WidthCurve


@dataclass(frozen=True)
class Size:
    """A batch size; one unit of the journal."""

    index: int
    batch_size: int
    problem: str | None = None
    prompts: tuple[NamedPrompt, ...] = field(default=(), repr=False)

    @property
    def kind(self) -> str:
        """Its name."""
        return f"batch {self.batch_size}"


class Crossover:
    """Measure one batch size after the other.

    Args:
        arguments: of the command line.
        oracle: shared by all arms.
        prompts: that fit it, at least as many as the largest batch has rows.
    """

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle = arguments, oracle
        self.prompts = [replace(prompt, kind=ALL) for prompt in prompts]
        self.sampling = SamplingParams(temperature=arguments["temperature"], top_p=arguments["top_p"], ignore_eos=True)

    def arms(self, batch_size: int) -> dict[int, EngineArm]:
        """Return draft length -> arm; 0 is plain decoding.

        Raises:
            ValueError: this oracle cannot have the strategy, or its options are unusable.
        """
        name, judging = self.arguments["strategy"], judging_of(self.arguments)
        settings = settings_of({**self.arguments, "batch_size": batch_size}, name)
        made = {0: EngineArm(PLAIN, self.oracle, None, self.sampling, *judging)}
        for length in self.arguments["draft_lengths"]:
            source = build_shared(name, {**settings, LENGTH: length}, self.oracle)
            made[length] = EngineArm(f"{name}, {length}", self.oracle, source, self.sampling, *judging)
        return made

    def measure(self, size: Size) -> dict[str, Any]:
        """Return the journal entry of a batch size."""
        rows, arms = size.batch_size, self.arms(size.batch_size)
        outcome = outcome_of(
            [*arms.values()], self.prompts, rows, self.arguments["seed"], self.arguments["max_new_tokens"]
        )
        if problems := outcome.problems():
            raise RuntimeError("; ".join(problems))
        widths = [1 + length for length in sorted(arms)]
        costs = WidthCurve.of_seconds(widths, pass_seconds(self.oracle, widths, rows), rows)
        timed = {length: step_times(outcome, arm.name, length, rows) for length, arm in arms.items()}
        times = {length: one for length, one in timed.items() if one is not None}
        if missing := [length for length in arms if length not in times]:
            raise RuntimeError(
                f"no {ENOUGH} steps of {rows} rows that all drafted {missing} tokens: give more tokens or prompts"
            )
        parts = StepParts.of(times)
        return {
            "unit": size.index,
            "kind": size.kind,
            "error": None,
            "rows": [_row(rows, length, outcome, arm.name, parts, costs) for length, arm in arms.items() if length],
            "parts": {"batch": rows, **parts.row(times)},
        }


def _row(batch: int, length: int, outcome: Outcome, arm: str, parts: StepParts, costs: WidthCurve) -> dict[str, Any]:
    plain, stats, alone = outcome.stats(PLAIN), outcome.stats(arm), outcome.decoding_speedup(arm)
    assert plain is not None
    assert stats is not None
    assert alone is not None
    predicted = predict(plain, stats, parts, length, costs(1 + length))
    return {
        "batch": batch,
        "k": length,
        "tau": stats.block_efficiency,
        "v": costs(1 + length),
        "rows": in_flight(plain, stats),
        DECODING_ALONE: alone.value,
        "predicted": predicted,
        "measured/predicted": alone.value / predicted,
        END_TO_END: str(outcome.speedup(arm)),
    }
