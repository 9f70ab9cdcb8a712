"""Heads beside a graphed oracle: the references' scores and laws, whole drafts in one graph, nothing that waits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import drafts
from oracles.graphed import GraphedTransformer
from oracles.graphed.ways import ATTENTIONS
from oracles.heads import DFlashHead, Eagle3Head, GraphedEagle3Head
from specdec import Grown, Kary, Paths, ReRanked, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import BITWISE_NODES, Features
from tests.graphed.emulated import CUDA, emulated_device
from tests.graphed.heads import block_beside, head_beside
from tests.graphed.histories import PROMPTS, Recorded, pair
from tests.graphed.pairs import moved
from tests.support.drafting.eagle3_histories import history_of
from tests.support.drafting.head_watch import CLOSE, watched_block
from tests.support.models.eagle3_heads import LAYOUTS
from tests.support.models.head_folders import LAYOUTS as BLOCKS
from tests.support.models.tiny_models import small_model, tiny_unpacked
from tests.support.pairwise import first_of

# Every kind of a head's own parts; the rest of what is published is long.
KINDS = ("official", "official, borrowed", "speculators", "a narrower head")
KINDS_OF_BLOCKS = (
    *("dflash", "dspark rnn", "dflash with a window", "speculators dflash with windows that see ahead", "few ids"),
)


@pytest.mark.parametrize("names", first_of(KINDS, [name for name in LAYOUTS if name not in KINDS]))
def test_scores_and_what_is_fed_back_are_the_references_after_any_history(names, tmp_path):
    """Chains and trees of ragged rows, with rollback."""
    for seed, name in enumerate(names):
        plain, model = (tiny_unpacked(11, num_layers=6) for _ in range(2))
        attention = ("masked", "chunked")[seed % 2]
        oracle = GraphedTransformer(model.pack(), new_capture=Recorded, attention=attention)
        history = history_of(tmp_path / str(seed), LAYOUTS[name], oracle, plain, seed, slack=4 * (seed % 3), steps=10)
        assert isinstance(history.head, GraphedEagle3Head)
        assert history.head._calls.passes.way.attention is ATTENTIONS[attention]
        assert history.worst < 1e-9, name
        assert history.compared > 20
        assert history.head.counts.passes_in_graphs > 5


@pytest.mark.parametrize("names", first_of(KINDS_OF_BLOCKS, [name for name in BLOCKS if name not in KINDS_OF_BLOCKS]))
def test_laws_of_blocks_are_the_references(names, tmp_path):
    """Along chains and in trees."""
    attentions = [(name, "masked") for name in names] + [(name, "chunked") for name in names if "window" in name]
    for i, (layout, attention) in enumerate(attentions):
        tree = Paths([(0, 0, 0), (0, 1), (1, 0)]) if i % 2 else None
        oracle, source = watched_block(tmp_path / str(i), layout, "graphed", attention=attention, tree=tree)
        decoder = SpeculativeDecoder(oracle, source, "multi_draft")
        prompts = [[1, 2, 3, 1, 2], [0], [3, 3], [2, 0, 1]]
        decoder.generate(prompts, 10, SamplingParams(temperature=1.0), batch_size=3)
        assert source.worst < CLOSE["eager"], layout
        assert len(source.depths) > 20
        assert source.head.counts.passes_in_graphs > 5


SOURCES: dict[str, Any] = {
    "chain": lambda head: drafts.Eagle3(head, 4),
    "threshold": lambda head: drafts.Eagle3(head, length=Threshold(threshold=0.1, max_draft_tokens=4)),
    "greedy for drawn tokens": lambda head: drafts.Eagle3(head, 3, temperature=0),
    "tree": lambda head: drafts.Eagle3(head, tree=Kary(2, 2)),
    "re-ranked": lambda head: drafts.Eagle3(head, tree=ReRanked(6, 3, 2), temperature=0),
    "grown": lambda head: drafts.Eagle3(head, tree=Grown(4, 2, width=2)),
    "block": lambda head: drafts.BlockDrafter(head),
    "a tree of a block": lambda head: drafts.BlockDrafter(head, tree=Kary(2, 2)),
    "a part of a block": lambda head: drafts.BlockDrafter(head, 3, temperature=0),
    "among others": lambda head: drafts.Cascade([drafts.PromptLookup(2, min_ngram=2), drafts.Eagle3(head, 3)]),
}


def eager_twin(head: Any) -> Any:
    """Return the eager head that has a graphed head's very weights."""
    kind = Eagle3Head if isinstance(head, GraphedEagle3Head) else DFlashHead
    twin = kind.__new__(kind)
    twin.__dict__.update(head.__dict__)
    if isinstance(twin, DFlashHead):
        twin._mask = twin._embed(torch.tensor([twin.shape.mask_id]))
    return twin


def test_runs_are_those_of_the_eager_head():
    """Rows end by their budget and by the oracle's context; what a step accepts of its drafts is equal too."""
    eager, warm = pair(max_context=28)[0], SamplingParams(temperature=0.9)
    for sampling, names in ((warm, list(SOURCES)[::2]), (SamplingParams(), ("chain", "block", *list(SOURCES)[1::2]))):
        plain = SpeculativeDecoder(eager, rule="coupled").generate(PROMPTS, 22, sampling).tokens
        for name in names:
            beside = block_beside if "block" in name else head_beside
            head, found = beside(pair(max_context=28, new_capture=Recorded)[1]), []
            for one in (head, eager_twin(head)):
                decoder = SpeculativeDecoder(head.oracle, SOURCES[name](one), "coupled")
                run = decoder.generate(PROMPTS, 22, sampling, batch_size=3)
                assert run.tokens == plain, name
                found.append((run.stats.num_drafted, run.stats.num_accepted, run.stats.target_calls))
            assert found[0] == found[1], name
            assert found[0][0] > 20
            assert head.counts.passes_in_graphs > 10


def test_a_chain_is_one_call_and_one_graph():
    for beside, source, single in ((head_beside, drafts.Eagle3, 4), (block_beside, drafts.BlockDrafter, 1)):
        head, seen = beside(pair(new_capture=Recorded)[1]), []
        for is_whole in (True, False):
            head.chains_on_device = is_whole
            before, uploads = head.counts.passes_in_graphs + head.counts.passes_outside, head.uploads
            run = SpeculativeDecoder(head.oracle, source(head, 4)).generate(PROMPTS[:1], 40)
            passes = head.counts.passes_in_graphs + head.counts.passes_outside - before
            assert passes == head.uploads - uploads
            seen.append((run.tokens, run.stats.num_accepted, passes / run.stats.target_calls))
        assert seen[0][:2] == seen[1][:2]
        # One that takes in hidden states, and one for a chain, or for each of its tokens.
        assert 1.7 < seen[0][2] < 2.3
        assert seen[1][2] > single + 0.5


def test_a_draft_deeper_than_a_pass_is_wide_reads_a_prompt_in_parts():
    head, prompt = head_beside(pair(max_context=300)[1]), [1 + i % 7 for i in range(200)]
    plain, found = (SpeculativeDecoder(head.oracle, draft) for draft in (None, drafts.Eagle3(head, BITWISE_NODES)))
    assert found.generate([prompt], 8).tokens == plain.generate([prompt], 8).tokens


def test_states_are_rounded_to_the_heads_type_and_ids_without_them_are_refused():
    head, rows, zero = head_beside(pair()[1]), np.array([0]), np.array([0])
    ids, counts = np.array([[1, 2]]), np.array([2])
    states, found = tuple(torch.linspace(-1, layer, 64).view(1, 2, 32) for layer in range(3)), []
    for given in (states, tuple(layer.double() for layer in states)):
        cache = head.new_cache(1, 20)
        with pytest.raises(ValueError, match="a node hangs on one of the same pass"):
            head.device_chains(ids, counts, cache, rows, np.array([3]))
        head.put(Features(rows, zero, counts, given), cache)
        found.append(head.device_chains(ids, counts, cache, rows, np.array([3])).tokens)
    assert torch.equal(*found)


def test_nothing_waits_and_a_call_is_one_copy():
    with emulated_device() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda place: (10**10, 10**10))
        head = head_beside(GraphedTransformer(moved(small_model()).pack()))
        cache, rows, counts = head.new_cache(4, 100, 10**9), np.array([2, 0, 1]), np.array([3, 1, 2])
        states = tuple(torch.zeros(3, 5, 32, device=CUDA) for _ in range(3))
        tokens, nodes = np.ones((3, 3), dtype=np.int64), torch.from_numpy(counts)
        tree = torch.tensor([[-1, 0, 0]] * 3, device=torch.device("cpu"))
        zero = np.zeros_like(counts)
        blocks = block_beside(head.oracle)
        held, pending = blocks.new_cache(4, 100, 10**9), torch.ones(3, dtype=torch.int64, device=CUDA)
        for call in (
            lambda: blocks.put(Features(rows, zero, counts, states[:2], np.array([[4, 0, 2]] * 3)), held),
            lambda: blocks.open_block(held, rows, pending, 3).logits(0, pending.unsqueeze(1)),
            lambda: blocks.device_blocks(held, rows, counts, np.array([3, 1, 2])),
            lambda: head.put(Features(rows, zero, counts, states, np.array([[4, 0, 2]] * 3)), cache),
            lambda: head.score(torch.from_numpy(tokens[:, :1]), None, torch.from_numpy(zero + 1), cache, rows),
            lambda: head.score(torch.from_numpy(tokens), tree, nodes, cache, rows, "last", (0,), first=1),
            lambda: head.device_chains(tokens, counts, cache, rows, np.array([3, 1, 2])),
        ):
            device.reset()
            call()
            assert (device.seen, device.mixed) == ((1, 0, {}), {})
        assert cache.known[rows].tolist() == held.lengths[rows].tolist() == counts.tolist()
        # Four rows: of four nodes whose states come, and of two blocks of six.
        seen = blocks.counts
        assert (seen.computed_nodes, seen.padded_rows, seen.padded_nodes) == (4 * (4 + 6 + 6), 3, 7 + 9 + 9)
        with pytest.raises(ValueError, match="cache lies on cpu, and the oracle on cuda:0"):
            head.put(Features(rows, zero, counts, states), head_beside(pair()[1]).new_cache(4, 100))


def test_memory_is_counted_bounded_and_kept_for_the_next_run(tmp_path: Path):
    head = head_beside(pair()[1])
    cache = head.new_cache(2, 10)
    assert cache.bytes == cache.payload.nbytes + cache.features.nbytes
    assert cache.features.shape == (2, cache.capacity + 1, head.config.hidden_size)
    with pytest.raises(ValueError, match="max_cache_bytes"):
        head.new_cache(2, 10, max_cache_bytes=cache.bytes - 1)
    assert head.new_cache(2, 10, max_cache_bytes=cache.bytes).bytes == cache.bytes
    memory = cache.memory
    cache.features.fill_(1)
    del cache
    again = head.new_cache(2, 10)
    assert again.memory is memory
    assert not again.features.any()
