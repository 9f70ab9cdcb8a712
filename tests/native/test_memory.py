"""Arrays whose memory compiled code is given, and records that are read, or sent away, before a run is over."""

import gc
import pickle

import numpy as np
import pytest
import torch

from drafts import PromptLookup
from oracles import TabularLM
from oracles.native.host_memory import Slabs, zeros
from oracles.native.packed_blocks import plain_blocks
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import constant
from specdec.kernels.compiled import place
from tests.support.statistics import TARGET


def test_large_tensors_stand_side_by_side_from_the_beginning_of_cache_lines_on(monkeypatch):
    monkeypatch.setattr(Slabs, "SIZE", 2**20)
    sizes = [2**16 + 4, 2**18, 2**21, 2**16 - 4]
    given = [torch.arange(size // 4, dtype=torch.int32) for size in sizes]
    slabs = Slabs()
    placed = [slabs.place(tensor.view(1, -1)) for tensor in given]
    assert [p.data_ptr() - placed[0].data_ptr() for p in placed[:2]] == [0, 2**16 + 64]
    assert placed[3].data_ptr() == given[3].data_ptr(), "what is small stays where it is"
    views = [tensor[: len(tensor) // 4 * 4].view(4, -1).t() for tensor in given]
    assert all((copy := slabs.place(view)).is_contiguous() and torch.equal(copy, view) for view in views)
    table = zeros(3, 5, 16)
    assert all(p.data_ptr() % 64 == 0 and p.is_contiguous() for p in (*placed[:3], table))
    assert table.shape == (3, 5, 16)
    assert not table.any()
    del slabs
    gc.collect()
    assert all(torch.equal(p.flatten(), g) for p, g in zip(placed, given, strict=True))


def test_blocks_of_weights_are_views_so_that_a_slab_has_the_only_copy():
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        weight = torch.zeros(64, 6, dtype=dtype)
        assert plain_blocks(weight).data_ptr() == weight.data_ptr()


def test_a_place_is_the_address_that_numpy_gives():
    array = np.arange(6, dtype=np.int64)
    fixed = array.copy()
    fixed.flags.writeable = False
    for given in (array, array[2:], array.reshape(2, 3), fixed, np.zeros(0), np.zeros(3, dtype=np.bool_)):
        assert place(given) == given.ctypes.data
    array.resize(9, refcheck=False)  # nothing holds its memory
    with pytest.raises(TypeError):
        place(array[::2])


def test_constants_are_shared_and_nobody_writes_to_them():
    assert constant(3, 8) is constant(3, 8)
    assert constant(3, 8).tolist() == [8, 8, 8]
    with pytest.raises(ValueError, match="read-only"):
        constant(3, 8)[0] = 1


@pytest.mark.parametrize("return_logprobs", [False, True], ids=["ids", "log-probabilities"])
def test_records_of_a_run_under_way_can_be_sent_away(return_logprobs):
    decoder = SpeculativeDecoder(TabularLM(TARGET), PromptLookup(2))
    state = decoder.start([[0, 1, 2, 0, 1]], 4, SamplingParams(ignore_eos=True), return_logprobs=return_logprobs)
    state, info = decoder.step(state)
    sent = pickle.loads(pickle.dumps(info))
    assert sent.tokens.tolist() == info.tokens.tolist()
    assert sent.ranks.tolist() == info.ranks.tolist()
