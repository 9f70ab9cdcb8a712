"""The warning about threads without cores of their own."""

import pytest
import torch

from experiments.harness import thread_check


@pytest.mark.parametrize(("times", "warns"), [({1: 1.0, 2: 0.6}, False), ({1: 1.0, 2: 30.0}, True)])
def test_threads_that_are_slower_than_one_are_reported(monkeypatch, capsys, times, warns):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(thread_check, "_seconds", lambda num_threads, factor: times[num_threads])
    thread_check.take_threads(None)
    assert ("2 torch threads are 30.0 times slower than one" in capsys.readouterr().err) == warns


def test_measuring_leaves_the_number_of_threads(capsys):
    before = torch.get_num_threads()
    assert thread_check.slowdown() > 0
    assert torch.get_num_threads() == before
