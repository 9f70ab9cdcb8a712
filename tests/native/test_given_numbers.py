"""The compiled judge by numbers that it is given: what hashed ones draw, row by row, and which are refused."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec.contracts import OpenVerdict
from specdec.kernels.compiled import NATIVE_DTYPES, PackedDrafts, Way
from specdec.sampling.randomness import Keyed
from tests.support.drafting.judged_steps import (
    by_the_rule,
    check,
    framed,
    grown,
    in_one_call,
    step_of,
    verdict_of,
    whole,
)


@dataclass(frozen=True)
class Given(Keyed):
    """Streams that hand the judge the numbers themselves, which ``Keyed`` has hashed by compiled code."""

    def verdict_numbers(self, num_rows: int, verdict: OpenVerdict, purposes: Any = ()) -> Any:
        numbers = np.stack([self.uniforms("stop"), self.uniforms("next")], axis=1)
        stops, next_ids = verdict.verify(np.arange(num_rows), numbers)
        backwards = verdict.verify(np.arange(num_rows - 1, -1, -1), numbers[::-1])
        assert [part[::-1].tolist() for part in backwards] == [stops.tolist(), next_ids.tolist()]
        return numbers


@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
@pytest.mark.parametrize("rule", ["standard", "multi_draft", "sample_and_match"])
def test_given_numbers_draw_what_hashed_ones_do(rule, dtype):
    generator = np.random.default_rng(8)
    for case in range(30):
        step = step_of(generator, 1 + case % 6, case % 7, 33, dtype, bool(case % 2))
        step = by_the_rule(rule, step if rule == "standard" else grown(generator, step))
        streams = step.frame.randomness
        check(in_one_call(framed(step, randomness=Given(streams.seeds, streams.parts))), in_one_call(step))


@pytest.mark.parametrize(
    ("way", "numbers"),
    [
        (Way.OFFERED, np.zeros((2, 2))),
        (Way.OFFERED, np.zeros((3, 1))),
        (Way.MATCHED, np.full((3, 2), 1.0)),
        (Way.MATCHED, np.full((3, 2), np.nan)),
        (Way.OFFERED, -np.full((3, 2), 1e-300)),
        (Way.OFFERED, np.zeros((3, 2), np.float32)),
        (Way.RACED, np.zeros((3, 2))),
        (Way.RACED, np.zeros(5, np.int64)),
        (Way.MATCHED, np.zeros(2, np.int64)),
        (Way.OFFERED, None),
    ],
)
def test_numbers_that_nothing_can_be_drawn_by_are_refused(way, numbers):
    def verdict_numbers(num_rows: int, verdict: PackedDrafts) -> Any:
        verdict.way = way
        with pytest.raises(ValueError, match=r"numbers \[3, 2\] on|path of 3 streams|races of 3 rows|nothing can"):
            verdict.draw(numbers)
        refused.append(way)

    refused: list[Way] = []
    step = whole()
    streams = SimpleNamespace(coupled=False, verdict_numbers=verdict_numbers, choose=step.frame.randomness.choose)
    verdict_of(framed(step, randomness=streams))
    assert refused == [way]
