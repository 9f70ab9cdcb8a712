"""Block drafters in compiled code: beside the eager head, and the same bits however they are asked.

Their laws are compared with those of slow references in ``tests/exact/heads/test_block_drafters.py``.
"""

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafts import BlockDrafter
from oracles import load_head
from oracles.heads import DFlashHead, NativeBlockHead
from oracles.native import NativeTransformer
from oracles.native.native_model import NativeModel
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Features
from specdec.drafting.block_source import _BlockModel
from specdec.drafting.lengths import Entropy
from tests.support.backends import needed_native
from tests.support.drafting.head_watch import CLOSE, watched_block
from tests.support.models.head_folders import LAYOUTS, block_folder
from tests.support.models.native_models import ASKED, HEAD_TYPES, SAMPLINGS, assert_near, assert_plain_tokens
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import pairwise

needed_native()

FOLLOWED = {name: LAYOUTS[name] for name in ("dflash", "dspark", "few ids", "speculators dflash from the anchor")}
WARM = SamplingParams(temperature=1.0)
SIZE, CAPACITY = 16, 40

ORACLE = tiny_transformer(4, torch.float32, 0, NativeTransformer)


@cache
def head_of(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Return a head of the oracle in a layout."""
    with TemporaryDirectory() as home:
        folder = block_folder(Path(home), **LAYOUTS[name])
        folder.weights = {
            key: value.to(dtype) if value.is_floating_point() else value for key, value in folder.weights.items()
        }
        return load_head(folder.save(), ORACLE, **options)


def check_reference(name: str) -> None:
    """Fail unless a layout's laws are the reference's."""
    with TemporaryDirectory() as folder:
        oracle, source = watched_block(Path(folder), name, "native")
        SpeculativeDecoder(oracle, source).generate(ASKED, 16, WARM, batch_size=3)
        assert source.worst < CLOSE["native"]


def states_of(lengths: list[int]) -> tuple[Tensor, ...]:
    """Return hidden states ``[B, L, D]`` of two layers; a row's are the same whatever its batch."""
    whole = torch.full((2, len(lengths), max(lengths), SIZE), torch.nan)
    for row, length in enumerate(lengths):
        whole[:, row, :length] = torch.randn(2, length, SIZE, generator=torch.Generator().manual_seed(length))
    return whole.unbind(0)


def opened(head: Any, lengths: list[int], chunk: int = CAPACITY, rows: list[int] | None = None) -> Tensor:
    """Return the logits ``[B, depth, V]`` of blocks after texts, whose hidden states came a chunk at a time."""
    batch = np.arange(len(lengths)) if rows is None else np.array(rows)
    cache, counts = head.new_cache(max(batch) + 2, max(CAPACITY, *lengths)), np.array(lengths)
    for start in range(0, max(lengths), chunk):
        now = np.clip(counts - start, 0, chunk)
        columns = np.minimum(np.arange(start, start + chunk), counts[:, None] - 1)
        features = Features(batch, np.minimum(counts, start), now, states_of(lengths), columns)
        head.put(features, cache)
    pending = torch.tensor([length % 4 for length in lengths])
    block, found = head.open_block(cache, batch, pending, head.num_laws), []
    for depth in range(head.num_laws):
        found.append(block.logits(depth, pending.unsqueeze(1))[:, 0])
        pending = (pending + 1) % 4
    return torch.stack(found, 1)


@pairwise({"name": ("dspark", "dflash", "few ids", "dspark rnn"), "type": tuple(HEAD_TYPES)})
def test_it_scores_as_the_eager_head_does(name, type):
    dtype, weights, error = HEAD_TYPES[type]
    native, eager = (head_of(name, dtype, weights=weights, backend=backend) for backend in ("native", "eager"))
    assert (native.__class__, eager.__class__) == (NativeBlockHead, DFlashHead)
    assert native.weight_type == (weights or str(dtype).removeprefix("torch."))
    ours, theirs = (opened(head, [9, 4, 13]) for head in (native, eager))
    assert_near(ours, theirs, error)


@pytest.mark.parametrize("weights", [None, "int8", "int8-dynamic"], ids=str)
@pytest.mark.parametrize("name", ["dspark", "few ids"])
def test_bits_depend_on_the_row_alone(name, weights, set_threads):
    head = head_of(name, torch.bfloat16, weights=weights)
    lengths = [23, 5, 31]
    wanted = opened(head, lengths)
    for count, chunk, rows in ((1, 1, None), (2, 7, [2, 0, 3]), (3, 31, [1, 2, 0])):
        set_threads(count)
        assert torch.equal(opened(head, lengths, chunk, rows), wanted)
    for row, length in enumerate(lengths):
        assert torch.equal(opened(head, [length])[0], wanted[row])


def test_layers_that_reach_unlike_far_meet_the_same_chunks(tmp_path, set_threads):
    """Chunks of 256 positions are those that some layer sees; three threads share those of few tiles."""
    lengths = [530, 3, 270]
    for i, windows in enumerate([(3, None), (None, 300), (260, 260)]):
        folder = block_folder(tmp_path / str(i), layout="dflash", windows=windows, max_position_embeddings=700).path
        native, eager = (load_head(folder, ORACLE, backend=backend) for backend in ("native", "eager"))
        set_threads(2)
        wanted = opened(native, lengths)
        assert_near(wanted, opened(eager, lengths), HEAD_TYPES["float32"][2])
        for count in (1, 3):
            set_threads(count)
            for row, length in enumerate(lengths):
                assert torch.equal(opened(native, [length])[0], wanted[row])


def test_keys_are_turned_by_their_positions_whatever_call_makes_them(tmp_path):
    """Hidden states wait for the next call: one for another row, or one that brings more."""
    folder, lengths = block_folder(tmp_path, max_position_embeddings=600, **LAYOUTS["dflash"]).path, [290, 3]
    states, counts, rows, pending = states_of(lengths), np.array(lengths), np.arange(2), torch.tensor([1])

    def law(chunk: int, others: list[int]) -> Tensor:
        head = load_head(folder, ORACLE)  # its tables of rotations are short yet
        cache = head.new_cache(2, 300)
        for start in range(0, 290, chunk):
            columns = np.minimum(np.arange(start, start + chunk), counts[:, None] - 1)
            now = np.clip(counts - start, 0, chunk)
            head.put(Features(rows, np.minimum(counts, start), now, states, columns), cache)
        for row in others:
            head.open_block(cache, np.array([row]), pending, head.num_laws)
        return head.open_block(cache, rows[:1], pending, head.num_laws).logits(0, pending.unsqueeze(1))

    wanted = law(290, [])
    assert torch.equal(law(280, []), wanted)
    assert torch.equal(law(290, [1]), wanted)


LENGTHS = {
    "whole": {},
    "short": {"num_draft_tokens": 2},
    "greedy": {"temperature": 0.0},
    "by entropy": {"length": Entropy(max_draft_tokens=3)},
}


@pairwise({"name": tuple(FOLLOWED), "sampling": SAMPLINGS, "options": LENGTHS})
def test_whole_drafts_are_those_made_depth_by_depth(name, sampling, options, monkeypatch):
    source = BlockDrafter(head_of(name), **options)
    make = partial(SpeculativeDecoder(ORACLE, source).generate, ASKED, 20, sampling, seed=3, batch_size=3)
    calls = 0

    def counted(self: NativeModel, entry: str, *rest: Any) -> None:
        nonlocal calls
        calls += entry == "specdec_block_chains"
        draft(self, entry, *rest)

    draft = NativeModel.draft
    monkeypatch.setattr(NativeModel, "draft", counted)
    whole = make()
    assert 0 < calls <= whole.stats.target_calls
    assert whole.drafter == "native: block_drafter"
    monkeypatch.setattr(_BlockModel, "follower", lambda *_: None)
    single = make()
    assert single.drafter == "block_drafter"
    assert whole.tokens == single.tokens
    assert whole.stats.num_accepted == single.stats.num_accepted
    assert whole.stats.num_drafted == single.stats.num_drafted > 30


@pairwise({"name": tuple(FOLLOWED), "rule": ("greedy", "coupled"), "batch_size": (3, 8)})
def test_tokens_equal_plain_decodings_and_drafts_do_not_depend_on_the_batch(name, rule, batch_size):
    assert_plain_tokens(ORACLE, BlockDrafter(head_of(name)), rule, batch_size)


def test_a_mask_may_stand_among_the_rows_that_pad_a_table_of_its_own(tmp_path):
    folder = block_folder(tmp_path, 7, **LAYOUTS["dflash"], mask_id=5).path
    own, tied = (
        NativeTransformer(tiny_unpacked(4, torch.float32, padded_vocab_size=7, tie_embeddings=is_tied))
        for is_tied in (False, True)
    )
    native, eager = (opened(load_head(folder, own, backend=backend), [9, 4]) for backend in ("native", "eager"))
    assert_near(native, eager, HEAD_TYPES["float32"][2])
    with pytest.raises(ValueError, match="no embedding of 'mask_token_id' 5, a row that pads its table"):
        load_head(folder, tied)


def test_what_a_block_wrote_does_not_outlive_its_row():
    head, row = head_of("dflash"), np.array([0])
    cache = head.new_cache(1, CAPACITY)
    head.put(Features(row, np.array([0]), np.array([16]), states_of([16])), cache)  # a page; the block has the next
    head.open_block(cache, row, torch.tensor([1]), head.num_laws)
    cache.reset(row)
    assert not any(tensor.any() for tensor in cache.memory.tensors)


def test_more_laws_than_a_block_has_are_refused():
    head = head_of("dflash")
    with pytest.raises(ValueError, match="4 laws are asked for, and a block of this head has 3"):
        head.open_block(head.new_cache(1, CAPACITY), np.array([0]), torch.tensor([1]), head.num_laws + 1)


def test_nothing_of_the_oracle_is_copied_and_memory_is_bounded():
    head = head_of("dflash")
    assert bytes(head.native.struct.head) == bytes(ORACLE.native.struct.head)
    assert head.native.struct.embeddings is None
    cached = head.new_cache(2, 10)
    assert cached.bytes == cached.memory.keys.nbytes + cached.memory.values.nbytes
    with pytest.raises(ValueError, match="max_cache_bytes"):
        head.new_cache(2, 10, max_cache_bytes=cached.bytes - 1)
