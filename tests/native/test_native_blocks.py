"""Block drafters in compiled code: beside references and the eager head, and the same bits however they are asked."""

from collections.abc import Iterator
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
from specdec import Paths, SamplingParams, SpeculativeDecoder
from specdec.contracts import Features
from specdec.drafting.block_source import _BlockModel
from specdec.drafting.lengths import Entropy, Threshold
from tests.support.backends import needed_native
from tests.support.head_folders import LAYOUTS, BlockReference, block_folder
from tests.support.head_watch import WatchedHead
from tests.support.models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import diagonal, pairwise

needed_native()

FEW = {"layout": "speculators", "kind": "dspark", "markov": "vanilla", "draft_vocab": 3, "from_anchor": False}
ALL = {**LAYOUTS, "few ids": FEW}
FOLLOWED = {name: ALL[name] for name in ("dflash", "dspark", "few ids", "speculators dflash from the anchor")}
PROMPTS = [[1, 2, 3, 1, 2], [0], [3, 3], [2], [1, 2, 1, 2, 1, 2], [0, 1], [3], [2, 0, 1]]
TREE = Paths([(0, 0, 0), (0, 1), (1, 0)])
WARM = SamplingParams(temperature=1.0)
SIZE, CAPACITY = 16, 40
CLOSE = 1e-4  # distance of laws of float32 models from those of float64 ones

ORACLE = tiny_transformer(4, torch.float32, 0, NativeTransformer)


@cache
def head_of(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Return a head of the oracle in a layout."""
    with TemporaryDirectory() as home:
        folder = block_folder(Path(home), **ALL[name])
        folder.weights = {
            key: value.to(dtype) if value.is_floating_point() else value for key, value in folder.weights.items()
        }
        return load_head(folder.save(), ORACLE, **options)


def watched(folder: Any, **options: Any) -> WatchedHead:
    """Return a native source that is compared with the slow reference of a float64 oracle."""
    plain = tiny_unpacked()
    tables = plain.model.embed_tokens.weight.detach(), plain.lm_head.weight.detach()
    head = load_head(folder.path, ORACLE)
    assert isinstance(head, NativeBlockHead)
    return WatchedHead(BlockDrafter(head, **options), BlockReference(folder, tiny_transformer(), tables))


def run(source: Any, batch_size: int = 3, rule: str = "standard", num_new: int = 16) -> Any:
    return SpeculativeDecoder(ORACLE, source, rule).generate(PROMPTS, num_new, WARM, batch_size=batch_size)


@diagonal({"name": tuple(ALL), "batch_size": (1, 3, 8)})
def test_laws_of_blocks_are_the_references_after_any_history(name, batch_size, tmp_path):
    source = watched(block_folder(tmp_path, **ALL[name]))
    result = run(source, batch_size, num_new=10)
    assert source.worst < CLOSE
    assert set(source.depths) == set(range(source.head.num_laws))
    assert min(source.lengths) == 2
    assert 0 < result.stats.num_accepted < result.stats.num_drafted
    assert result.drafter.startswith("native: ") == source.head.chains


def check_reference(name: str) -> None:
    """Fail unless a layout's laws are the reference's."""
    with TemporaryDirectory() as folder:
        source = watched(block_folder(Path(folder), **ALL[name]))
        run(source)
        assert source.worst < CLOSE


@pytest.mark.parametrize("name", ["dspark", "few ids", "dspark rnn"])
def test_laws_in_trees_are_the_references_along_each_path(name, tmp_path):
    source = watched(block_folder(tmp_path, **ALL[name]), tree=TREE)
    run(source, rule="multi_draft", num_new=8)
    assert source.worst < CLOSE
    assert set(source.depths) == {0, 1, 2}


@pytest.mark.parametrize("name", ["dspark", "dspark gated"])
def test_a_policy_reads_the_heads_own_confidences(name, tmp_path):
    policy = Threshold(threshold=0.5, per_token=True, max_draft_tokens=3)
    source = watched(block_folder(tmp_path, **ALL[name]), length=policy)
    assert not run(source).drafter.startswith("native: ")  # its confidences are read between the depths
    assert source.worst < CLOSE
    assert 0 < source.worst_confidence < CLOSE


def test_a_draft_ends_with_the_heads_own_context_and_with_the_budget(tmp_path):
    source = watched(block_folder(tmp_path, **LAYOUTS["dflash"], max_position_embeddings=12))
    result = SpeculativeDecoder(ORACLE, source).generate([[1, 2, 3], [2]], 30, WARM)
    assert source.worst < CLOSE
    assert max(source.lengths) == 11
    assert [len(tokens) for tokens in result.tokens] == [30, 30]


def states_of(lengths: list[int]) -> tuple[Tensor, ...]:
    """Return hidden states ``[B, L, D]`` of two layers; a row's are the same whatever its batch."""
    whole = torch.full((2, len(lengths), max(lengths), SIZE), torch.nan)
    for row, length in enumerate(lengths):
        whole[:, row, :length] = torch.randn(2, length, SIZE, generator=torch.Generator().manual_seed(length))
    return whole.unbind(0)


def opened(head: Any, lengths: list[int], chunk: int = CAPACITY, rows: list[int] | None = None) -> Tensor:
    """Return the logits ``[B, depth, V]`` of blocks after texts, whose hidden states came a chunk at a time."""
    batch = np.arange(len(lengths)) if rows is None else np.array(rows)
    cache, counts = head.new_cache(max(batch) + 2, CAPACITY), np.array(lengths)
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


TYPES = {
    "float32": (torch.float32, None, 1e-5),
    "bfloat16": (torch.bfloat16, None, 1e-5),
    "rounded to bfloat16": (torch.float32, "bfloat16", 1e-5),
    "int8": (torch.bfloat16, "int8", 1e-5),
    "int4": (torch.float32, "int4", 1e-5),
    "int8-dynamic": (torch.float32, "int8-dynamic", 3e-2),  # what is rounded lies on an edge now and then
}


@pairwise({"name": ("dspark", "dflash", "few ids", "dspark rnn"), "type": tuple(TYPES)})
def test_it_scores_as_the_eager_head_does(name, type):
    dtype, weights, error = TYPES[type]
    native, eager = (head_of(name, dtype, weights=weights, backend=backend) for backend in ("native", "eager"))
    assert (native.__class__, eager.__class__) == (NativeBlockHead, DFlashHead)
    assert native.weight_type == (weights or str(dtype).removeprefix("torch."))
    ours, theirs = (opened(head, [9, 4, 13]) for head in (native, eager))
    written = theirs.isfinite()
    assert torch.equal(ours.isfinite(), written)
    assert (ours - theirs)[written].abs().max() <= error * theirs[written].abs().max()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("weights", [None, "int8", "int8-dynamic"], ids=str)
@pytest.mark.parametrize("name", ["dspark", "few ids"])
def test_bits_depend_on_the_row_alone(name, weights, threads):
    head = head_of(name, torch.bfloat16, weights=weights)
    lengths = [23, 5, 31]
    wanted = opened(head, lengths)
    for count, chunk, rows in ((1, 1, None), (2, 7, [2, 0, 3]), (3, 31, [1, 2, 0])):
        torch.set_num_threads(count)
        assert torch.equal(opened(head, lengths, chunk, rows), wanted)
    for row, length in enumerate(lengths):
        assert torch.equal(opened(head, [length])[0], wanted[row])


SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=0.2),
}
LENGTHS = {
    "whole": {},
    "short": {"num_draft_tokens": 2},
    "greedy": {"temperature": 0.0},
    "by entropy": {"length": Entropy(max_draft_tokens=3)},
}


@pairwise({"name": tuple(FOLLOWED), "sampling": SAMPLINGS, "options": LENGTHS})
def test_whole_drafts_are_those_made_depth_by_depth(name, sampling, options, monkeypatch):
    source = BlockDrafter(head_of(name), **options)
    make = partial(SpeculativeDecoder(ORACLE, source).generate, PROMPTS, 20, sampling, seed=3, batch_size=3)
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


@pairwise({"name": tuple(FOLLOWED), "rule": ("greedy", "coupled"), "batch_size": (1, 3, 8)})
def test_tokens_equal_plain_decodings_and_drafts_do_not_depend_on_the_batch(name, rule, batch_size):
    sampling = SAMPLINGS["greedy" if rule == "greedy" else "sampled"]
    used = "sample_and_match" if rule == "greedy" else rule
    plain = SpeculativeDecoder(ORACLE, None, used).generate(PROMPTS, 20, sampling, seed=3)
    decoder = SpeculativeDecoder(ORACLE, BlockDrafter(head_of(name)), used)
    made, alone = (decoder.generate(PROMPTS, 20, sampling, seed=3, batch_size=size) for size in (batch_size, 1))
    assert made.tokens == plain.tokens
    assert made.stats.num_accepted == alone.stats.num_accepted


def test_nothing_of_the_oracle_is_copied_and_memory_is_bounded():
    head = head_of("dflash")
    assert head.native.struct.head.weights == ORACLE.native.struct.head.weights
    assert head.native.struct.embeddings is None
    cached = head.new_cache(2, 10)
    assert cached.bytes == cached.memory.keys.nbytes + cached.memory.values.nbytes
    with pytest.raises(ValueError, match="max_cache_bytes"):
        head.new_cache(2, 10, max_cache_bytes=cached.bytes - 1)
