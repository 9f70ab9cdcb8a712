"""What is staged, sent and fetched, and the emulated device that counts it."""

from threading import Thread

import numpy as np
import pytest
import torch

from specdec.laws import scatter_rows, take
from specdec.transfers import PendingDownload, all_on_host, crossings, on_device, on_host, stage
from tests.graphed.emulated import CUDA, emulated_device


def test_what_was_staged_goes_with_the_next_copy():
    ids, flags, numbers = np.arange(5), np.array([True, False]), torch.tensor([0.1, -torch.inf], dtype=torch.float64)
    with emulated_device() as device:
        with stage((ids, flags, numbers, None), CUDA):
            assert device.uploads == 0
            assert on_host(on_device(np.arange(3), CUDA)).tolist() == [0, 1, 2]
            assert on_host(on_device(ids, CUDA)).tolist() == [0, 1, 2, 3, 4]
            assert on_host(on_device(flags, CUDA)).tolist() == [True, False]
            assert on_host(on_device(numbers, CUDA)).tolist() == [0.1, -np.inf]
            assert device.seen == (1, 4, {})
        on_device(ids, CUDA)
        assert device.uploads == 2
        with stage((ids,), CUDA):
            pass
        on_device(flags, CUDA)
        assert device.uploads == 3


def test_columns_come_back_in_one_copy():
    with emulated_device() as device:
        there = {
            "ids": torch.arange(6, device=CUDA).view(2, 3),
            "flags": torch.ones(2, dtype=torch.bool, device=CUDA),
            "masses": torch.full((3,), 0.25, device=CUDA),
            "nothing": torch.zeros(0, 4, dtype=torch.int64, device=CUDA),
        }
        found = all_on_host({**there, "here": torch.arange(2), "absent": None})
        assert device.seen == (0, 1, {})
    assert {name: array.tolist() for name, array in found.items()} == {
        "ids": [[0, 1, 2], [3, 4, 5]],
        "flags": [True, True],
        "masses": [0.25] * 3,
        "nothing": [],
        "here": [0, 1],
    }
    assert found["masses"].dtype == np.float64


def test_what_is_awaited_comes_with_the_next_columns_or_when_it_is_asked_for():
    with emulated_device() as device:
        first, second = (torch.arange(start, start + 3, device=CUDA) for start in (0, 5))
        coming = PendingDownload(first)
        assert all_on_host({"second": second})["second"].tolist() == [5, 6, 7]
        assert (coming.on_host().tolist(), device.downloads) == ([0, 1, 2], 1)
        asked = PendingDownload(second)
        assert (asked.on_host().tolist(), device.downloads) == ([5, 6, 7], 2)
        all_on_host({"first": first})
        PendingDownload(first)  # nobody holds it, so it does not come
        assert (all_on_host({"first": first})["first"].tolist(), device.downloads) == ([0, 1, 2], 4)
    assert PendingDownload(torch.arange(2)).on_host().tolist() == [0, 1]


def test_places_that_the_host_knows_send_nothing_to_a_device():
    rows = torch.arange(12).view(6, 2)
    for places in ([0, 1, 2], [5], [], [1, 3, 4], [0, 2, 5], [0, 1, 2, 3, 4, 5]):
        at = np.array(places, dtype=np.int64)
        here = take(rows, at), scatter_rows(rows[at], at, 6, -1)
        with emulated_device() as device:
            there = torch.arange(12, device=CUDA).view(6, 2)
            taken = take(there, at)
            found = on_host(taken), on_host(scatter_rows(taken, at, 6, -1))
            assert device.seen == (0, 2, {})
        assert [values.tolist() for values in found] == [values.tolist() for values in here]


def test_each_thread_has_its_own_copies():
    """What one thread staged never rides with another's copy, and is not found there."""
    ids, counts = np.arange(4), []
    with stage((ids,), CUDA):

        def other() -> None:
            with emulated_device() as device:
                on_device(ids, CUDA)
                counts.append((device.uploads, crossings(CUDA).uploads))

        thread = Thread(target=other)
        thread.start()
        thread.join()
    assert counts == [(1, 1)]


def test_the_emulated_device_fails_as_a_real_one_does():
    with emulated_device() as device:
        x = torch.arange(6, device=CUDA)
        assert x[x > 2].shape == (3,)
        assert (int(x.sum()), device.waits) == (15, {"index by a mask": 1, "_local_scalar_dense": 1})
        assert (len(x.nonzero()), len(x.masked_select(x > 3)), len(x.unique()), bool(x.sum() > 2)) == (5, 2, 6, True)
        assert device.waits.keys() == {"index by a mask", "_local_scalar_dense", "nonzero", "masked_select", "_unique2"}
        assert ((x + torch.tensor(1)).shape, device.mixed) == ((6,), {"add": 1})
        with pytest.raises(RuntimeError, match="add was given tensors on different devices"):
            x + torch.arange(6)
        for refused in (x.tolist, x.numpy):
            with pytest.raises(TypeError, match="of a tensor on the device"):
                refused()
        x[torch.tensor([1])] = 7
        assert device.uploads == 1  # torch brings indices of the host by itself
        assert x.cpu().tolist() == [0, 7, 2, 3, 4, 5]
