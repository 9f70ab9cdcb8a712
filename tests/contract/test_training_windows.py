"""The data order: a pure function of seed and step that reads the whole stream."""

import pytest
import torch

from oracles.training.windows import WindowPlan

STREAM = torch.arange(5000)
PLAN = WindowPlan(tokens_per_step=256, length=64, long_length=128, long_share=0.25, repeat_share=0.0)


def test_a_step_reads_the_same_windows_whatever_came_before() -> None:
    later = PLAN.batch(STREAM, 3, 17, 40)
    for step in range(17):
        PLAN.batch(STREAM, 3, step, 40)
    assert torch.equal(PLAN.batch(STREAM, 3, 17, 40), later)


def test_seeds_and_steps_differ() -> None:
    batches = [PLAN.batch(STREAM, seed, step, 40) for seed, step in ((0, 0), (1, 0), (0, 1))]
    assert not any(torch.equal(batches[i], batches[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_windows_are_runs_of_the_stream_of_the_planned_shape() -> None:
    short, long = PLAN.batch(STREAM, 0, 29, 40), PLAN.batch(STREAM, 0, 30, 40)
    assert short.shape == (4, 65)
    assert long.shape == (2, 129)
    assert (short.diff() == 1).all()
    assert (long.diff() == 1).all()


def test_an_epoch_reads_no_token_twice_as_a_target() -> None:
    per_epoch = (len(STREAM) - 1) // 64 - 1
    steps = torch.cat([PLAN.batch(STREAM, 0, step, 400)[:, 1:] for step in range(per_epoch // 4)])
    assert steps.unique().numel() == steps.numel() > 0.9 * len(STREAM)


def test_repeats_copy_an_earlier_part_with_one_id_renamed() -> None:
    plan = WindowPlan(tokens_per_step=512, length=512, long_length=512, repeat_share=1.0)
    row = plan.batch(STREAM, 0, 0, 10)[0]
    jump = int((row.diff() < 0).nonzero()[0])
    distance = int(row[jump] - row[jump + 2]) + 2
    copied = row[jump + 1 : jump + 1 + 16]
    assert row.shape == (513,)
    assert (copied != row[jump + 1 - distance : jump + 1 - distance + 16]).sum() <= 1


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_repeat_share_counts_the_copies_in_a_piece(copies: int) -> None:
    plan = WindowPlan(tokens_per_step=512, length=512, long_length=512, repeat_share=float(copies))
    occurrences = [plan.batch(STREAM, 0, step, 10)[0].bincount() for step in range(8)]
    # A renamed id may stand in a window more often than the part it is in, so the largest count is no measure.
    usual = [counts[counts > 0].float().quantile(0.9, interpolation="nearest") for counts in occurrences]
    assert max(usual) == copies + 1


@pytest.mark.parametrize("lengths", [{"length": 100}, {"long_length": 300}])
def test_lengths_that_do_not_divide_are_refused(lengths: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(lengths))):
        WindowPlan(tokens_per_step=1024, **lengths)


def test_a_short_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        PLAN.batch(torch.arange(100), 0, 0, 40)
