"""The data order: a pure function of seed and step that reads the whole stream."""

import pytest
import torch

from oracles.factory.training.windows import MixedBatches, WindowPlan, Windows

STREAM = torch.arange(5000)
PLAN = WindowPlan(tokens_per_step=256, length=64, long_length=128, long_share=0.25)


def test_a_step_reads_the_same_windows_whatever_came_before() -> None:
    later = Windows(PLAN, STREAM, 3).batch(17, 40)
    for step in range(17):
        Windows(PLAN, STREAM, 3).batch(step, 40)
    assert torch.equal(Windows(PLAN, STREAM, 3).batch(17, 40), later)


def test_seeds_and_steps_differ() -> None:
    batches = [Windows(PLAN, STREAM, seed).batch(step, 40) for seed, step in ((0, 0), (1, 0), (0, 1))]
    assert not any(torch.equal(batches[i], batches[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_windows_are_runs_of_the_stream_of_the_planned_shape() -> None:
    short, long = Windows(PLAN, STREAM, 0).batch(29, 40), Windows(PLAN, STREAM, 0).batch(30, 40)
    assert short.shape == (4, 65)
    assert long.shape == (2, 129)
    assert (short.diff() == 1).all()
    assert (long.diff() == 1).all()


def test_an_epoch_reads_no_token_twice_as_a_target() -> None:
    per_epoch = (len(STREAM) - 1) // 64 - 1
    steps = torch.cat([Windows(PLAN, STREAM, 0).batch(step, 400)[:, 1:] for step in range(per_epoch // 4)])
    assert steps.unique().numel() == steps.numel() > 0.9 * len(STREAM)


def test_mixed_batches_hold_the_rows_of_both() -> None:
    first, second = (Windows(PLAN.halve(), stream, 0) for stream in (STREAM, STREAM + 10_000))
    rows = MixedBatches(first, second).batch(3, 40)
    assert rows.shape == (4, 65)
    assert torch.equal(rows[:2], first.batch(3, 40))
    assert torch.equal(rows[2:], second.batch(3, 40))


@pytest.mark.parametrize("lengths", [{"length": 100}, {"long_length": 300}])
def test_lengths_that_do_not_divide_are_refused(lengths: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(lengths))):
        WindowPlan(tokens_per_step=1024, **lengths)


def test_a_short_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        Windows(PLAN, torch.arange(100), 0).batch(0, 40)
