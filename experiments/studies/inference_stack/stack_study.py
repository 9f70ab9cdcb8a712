"""One batch size after the other: first calls, the gate, then times."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from experiments.harness.options import option
from experiments.harness.rounds import Spread
from experiments.studies.inference_stack.fresh import in_new_process
from experiments.studies.inference_stack.stack_arms import Generate
from experiments.studies.inference_stack.stack_registry import GROUPS, NAIVE, StackArm, arms_of
from experiments.studies.inference_stack.stack_timing import judge, speed_over, time_arms, write_ids
from experiments.studies.inference_stack.study_frame import Finding, Results, StudyOptions
from experiments.studies.inference_stack.subjects import SUBJECTS, Subject, build_subject
from specdec.system import write_whole

FIRST, GATE, TIME = "first", "gate", "time"
PARTS = (FIRST, GATE, TIME)
NAIVE_IDS = "naive.npy"
# Arms of one batch size by name, each built when first asked for.
Generates = Callable[[str], Generate]


@dataclass(frozen=True)
class StackOptions(StudyOptions):
    """What was asked for."""

    subject: str = option("arithmetic", "what to decode", choices=SUBJECTS)
    groups: tuple[str, ...] = option(tuple(GROUPS), "groups of arms (all)", measured=False, choices=GROUPS)
    arms: tuple[str, ...] | None = option(None, "arms of these groups (all)", measured=False, nargs="+", metavar="ARM")
    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", measured=False, choices=PARTS)
    side_gate_prompts: int = option(256, "how many of --gate-prompts the arms beside the stack decode")
    device: str = option("cpu", "cpu, cuda, cuda:1, ...")


def choose_arms(options: StackOptions) -> tuple[Subject, dict[str, StackArm]]:
    """Return what is decoded, and the arms that are asked for.

    Raises:
        ValueError: an arm or a device that is not there, or more prompts than there are.
    """
    subject = build_subject(options.subject, options.device, options.num_prompts, options.gate_prompts)
    arms = arms_of(subject, options.groups)
    unknown = [name for name in options.arms or () if name not in arms]
    if unknown:
        raise ValueError(f"--arms: {', '.join(unknown)} not among those of --groups here: {', '.join(arms)}")
    return subject, {name: arms[name] for name in options.arms or arms}


class StackStudy:
    """A run of the study.

    Args:
        options: of the run.
        results: where its figures are kept, and looked for first.
        subject: what is decoded.
        arms: name -> arm.
    """

    def __init__(self, options: StackOptions, results: Results, subject: Subject, arms: dict[str, StackArm]) -> None:
        self.options, self.results, self.subject, self.arms = options, results, subject, arms
        self._stack = arms_of(subject, ("stack",))

    def times(self, batch: int, name: str) -> Finding | None:
        """Return the times of an arm that was timed and has passed the gate."""
        return self.results.get(TIME, batch, name) if is_passed(self.results.get(GATE, batch, name)) else None

    def over(self, batch: int, name: str, other: str) -> Spread | None:
        """Return the speed of an arm over another's; None if one has no times, or their rounds were not interleaved."""
        return speed_over(self.times(batch, name), self.times(batch, other))

    def is_measured(self, batch: int, name: str) -> bool:
        """Tell whether a part has measured an arm that was asked for."""
        return name in self.arms and any(self.results.get(part, batch, name) is not None for part in PARTS)

    @property
    def failures(self) -> list[str]:
        """A line for every arm that failed, and why."""
        lines = []
        for batch in self.options.batches:
            for arm in self.arms:
                why = _reason([self.results.get(part, batch, arm) or {} for part in PARTS])
                if why is not None:
                    lines.append(f"batch {batch}, {arm}: {why}")
        return lines

    def run(self) -> None:
        """Measure what the results lack."""
        for batch in self.options.batches:
            torch._dynamo.reset()
            if FIRST in self.options.parts:
                self.results.fill(FIRST, batch, self.arms, partial(self._first_call, batch))
            generates = cache(lambda name, size=batch: self.arms[name].build(self.subject, size))
            if GATE in self.options.parts and self.results.lacking(GATE, batch, self.arms):
                judge_one = partial(self._judge, batch, generates, self._naive_ids)  # if it fails, no arm is to blame
                self.results.fill(GATE, batch, self.arms, judge_one)
            if TIME in self.options.parts:
                self._time(batch, generates)

    def _first_call(self, batch: int, name: str) -> Finding:
        options = self.options
        print(f"first call, batch {batch}: {name}", file=sys.stderr)
        try:
            return in_new_process(
                options.subject, name, batch, options.device, options.threads, options.out / "compiler"
            )
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [f"the process ended with status {error.returncode}"]
            return {"failed": lines[-1]}

    @cached_property
    def _naive_ids(self) -> Tensor:
        """``[G, num_new]`` ids of the naive arm, in batches of the largest size."""
        path, batch = self.options.out / NAIVE_IDS, max(self.options.batches)
        if not path.exists():
            generate = arms_of(self.subject)[NAIVE].build(self.subject, batch)
            count = len(self.subject.gate)
            content = BytesIO()
            np.save(content, write_ids(generate, self.subject, batch, count, "what the naive arm writes").numpy())
            write_whole(path, content.getvalue())
        return torch.from_numpy(np.load(path))

    def _judge(self, batch: int, generates: Generates, wanted: Tensor, name: str) -> Finding:
        """Return what the gate finds of an arm, beside the ids ``[G, num_new]`` of the naive one."""
        count = len(self.subject.gate)
        if name not in self._stack:
            count = min(count, self.options.side_gate_prompts)
        ids = write_ids(generates(name), self.subject, batch, count, f"gate, batch {batch}: {name}")
        return judge(ids, wanted, self.subject.answers)

    def _time(self, batch: int, generates: Generates) -> None:
        """Time all arms that passed the gate together, if one of them lacks times."""
        judged = {name: self.results.get(GATE, batch, name) for name in self.arms}
        if new := [name for name, gate in judged.items() if gate is None]:
            print(f"not timed at batch {batch}, for --parts gate comes first: {', '.join(new)}", file=sys.stderr)
        fit = [name for name, gate in judged.items() if is_passed(gate)]
        if not set(fit) & set(self.results.lacking(TIME, batch, self.arms)):
            return
        arms = {name: generates(name) for name in fit}
        self.results.put(TIME, batch, time_arms(arms, self.subject, batch, self.options))


def is_passed(gate: Finding | None) -> bool:
    """Tell whether an arm is known to write what the naive one writes."""
    return gate is not None and "failed" not in gate and gate["same"] == gate["prompts"]


def _reason(found: Sequence[Finding]) -> str | None:
    """Return why an arm failed, from what each part of the study found; None if it did not."""
    for part in found:
        if "same" in part and part["same"] < part["prompts"]:
            return f"{part['prompts'] - part['same']} of {part['prompts']} texts differ from those of the naive arm"
        if "failed" in part:
            return str(part["failed"])
    return None
