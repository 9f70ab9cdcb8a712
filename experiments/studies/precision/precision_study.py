"""Measure every precision as an oracle, and as a draft by views of fewer bits."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache, partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from drafts import Quantized
from experiments.bench.oracle.decoding import GREEDY, decode
from experiments.harness.arguments import PROMPTS
from experiments.harness.findings.model_shapes import shape_of
from experiments.harness.findings.step_columns import reason
from experiments.harness.rounds import Round, TimedArm, measure
from experiments.studies.inference_stack.stack_timing import judge, time_arms, write_ids
from experiments.studies.inference_stack.study_frame import Finding, Results, one_line
from experiments.studies.inference_stack.subjects import Subject, build_subject
from experiments.studies.precision import with_torchao
from experiments.studies.precision.precision_arms import (
    ARMS,
    BITS,
    DRAFTS,
    ORACLE,
    TEXT,
    TIME,
    TORCHAO,
    PrecisionOptions,
)
from oracles.checkpoints.loading import LoadedOracle, load_tokenizer
from oracles.factory.training.held_out import bits_per_byte
from oracles.transformer.eager import Transformer
from specdec import SpeculativeDecoder
from specdec.prompts import load_prompts
from specdec.stats import pool

PLAIN = "plain"
# The oracle whose text is measured in bits per byte.
READER = "code"
# Of oracles that are ``bitwise``, whose ids do not depend on it.
REFERENCE_BATCH = 128


def bytes_read(arm: str, oracle: LoadedOracle) -> float:
    """Return the bytes of weights that a pass reads; those made anew in every call are written and read as float32."""
    factor = 9 if ARMS[arm].widens else 1  # one byte is read, four are written, and read again
    if ARMS[arm].backend == TORCHAO:
        assert isinstance(oracle, Transformer)
        return with_torchao.bytes_read(oracle, factor)
    return factor * shape_of(oracle).weight_bytes


class PrecisionStudy:
    """A run of the study.

    Args:
        options: of the run.
        results: where its figures are kept, and looked for first.
        subject: what the oracles decode.
    """

    def __init__(self, options: PrecisionOptions, results: Results, subject: Subject) -> None:
        self.options, self.results, self.subject = options, results, subject
        self._oracle = cache(self._make)
        self._reference = cache(lambda arm: ARMS[arm].reference(subject.name))
        self._wanted = cache(self._write)

    def _make(self, arm: str, name: str) -> tuple[LoadedOracle, float]:
        """Return a checkpoint in the precision of an arm, and the seconds that it took to make."""
        began = time.perf_counter()
        return ARMS[arm].oracle(name), time.perf_counter() - began

    def run(self) -> None:
        """Measure what the results lack."""
        measure = {TEXT: self._texts, BITS: self._bits, TIME: self._times, DRAFTS: self._drafts}
        for part in self.options.parts:
            measure[part]()

    def _texts(self) -> None:
        for batch in self.options.batches[::-1]:
            self.results.fill(TEXT, batch, self.options.arms, partial(self._text, batch))

    def _text(self, batch: int, arm: str) -> Finding:
        """Return how an arm's outputs compare with the float32 oracle's and with its reference's."""
        oracle, seconds = self._oracle(arm, self.subject.name)
        ids = self._write(oracle, batch, f"text, batch {batch}: {arm}")
        most = min(REFERENCE_BATCH, len(self.subject.gate))
        wanted = self._wanted(self._oracle(ORACLE, self.subject.name)[0], most, f"oracle, batch {most}")
        found = {**judge(ids, wanted, self.subject.answers), "as_reference": None}
        reference = self._reference(arm)
        if reference is not None:
            size = most if reference.bitwise else batch
            same = judge(ids, self._wanted(reference, size, f"reference {arm}, batch {size}"), None)["same"]
            found["as_reference"] = same
        return {**found, "load_seconds": seconds, "bytes_read": bytes_read(arm, oracle)}

    def _write(self, oracle: LoadedOracle, batch: int, title: str) -> Tensor:
        generate, gate = partial(decode, oracle, self.subject.num_new), self.subject.gate
        return write_ids(generate, self.subject, batch, len(gate), title)

    def _bits(self) -> None:
        """Measure bits per byte of the shipped passages; models in training form compute as the arm's layers do."""
        parts = [load_prompts(PROMPTS, column, self.options.passages) for column in ("prompt", "reference")]
        texts = [prompt.text + reference.text for prompt, reference in zip(*parts, strict=True)]

        def measure_one(arm: str) -> Finding:
            precision = ARMS[arm]
            model = precision.model(READER).float()
            if precision.arithmetic != "float32":
                model = model.to(getattr(torch, precision.arithmetic))
            return {"bits": bits_per_byte(model, load_tokenizer(READER), texts)}

        self.results.fill(BITS, 1, self.options.arms, measure_one)

    def _times(self) -> None:
        """Time all arms together, if one of them lacks times."""
        options = self.options
        for batch in options.batches:
            texts = {arm: self.results.get(TEXT, batch, arm) or {} for arm in options.arms}
            fit = [arm for arm, found in texts.items() if "failed" not in found]
            if not self.results.lacking(TIME, batch, fit):
                continue
            made = {arm: self._oracle(arm, self.subject.name)[0] for arm in fit}
            arms = {arm: partial(decode, oracle, self.subject.num_new) for arm, oracle in made.items()}
            self.results.put(TIME, batch, time_arms(arms, self.subject, batch, options))

    def _drafts(self) -> None:
        """Draft for the float32 oracle with views of fewer bits."""
        options = self.options
        for name in options.draft_subjects:
            subject, part = build_subject(name, "cpu", 1, options.draft_prompts), f"{DRAFTS}, {name}"
            for batch in options.draft_batches:
                lacking = self.results.lacking(part, batch, options.draft_names)
                if lacking:
                    self.results.put(part, batch, self._measure_drafts(subject, batch, lacking))

    def _measure_drafts(self, subject: Subject, batch: int, lacking: Sequence[str]) -> dict[str, Finding]:
        """Return what drafts did at a batch size, or why they could not be made or changed the text.

        That is, in interleaved rounds beside plain decoding: seconds, why, and what a pass of the drafts reads.
        """

        def decode_once(decoder: SpeculativeDecoder) -> Round:
            result = decoder.generate(subject.gate.tolist(), subject.num_new, GREEDY, batch_size=batch)
            return Round(result.stats.total_seconds, np.array(result.tokens), result.stats)

        try:
            oracle, _ = self._oracle(ORACLE, subject.name)
            arms = [TimedArm(PLAIN, partial(decode_once, SpeculativeDecoder(oracle)))]
            num_bytes: dict[str, float | None] = {PLAIN: None}
            for view, length in product(self.options.views, self.options.lengths):
                name, (model, _) = f"{view}, {length} ahead", self._oracle(view, subject.name)
                decoder = SpeculativeDecoder(oracle, Quantized(oracle, model, length))
                arms.append(TimedArm(name, partial(decode_once, decoder), PLAIN))
                num_bytes[name] = shape_of(model).weight_bytes
            timings = measure(arms, self.options.rounds, f"drafts, {subject.name}, batch {batch}")
            stats = {name: pool(found) for name, found in timings.facts.items()}
            return {
                name: {
                    "seconds": timings.seconds[name],
                    "speedup": asdict(timings.ratio(PLAIN, name)),
                    "bytes_read": num_bytes[name],
                    "why": None if name == PLAIN else reason(stats[PLAIN], stats[name]),
                }
                for name in stats
            }
        except Exception as error:  # see Results.fill
            return {name: {"failed": one_line(error)} for name in lacking}
