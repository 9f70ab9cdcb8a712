"""On a CUDA device, where there is one: real graphs score as the CPU's eager passes do, and no call waits."""

from functools import partial

import numpy as np
import pytest
import torch

import drafts
from oracles.graphed import GraphedTransformer
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import Features
from specdec.kernels.filters import torch_probs
from tests.graphed.chain_histories import compare, models
from tests.graphed.heads import block_beside, head_beside
from tests.graphed.histories import PROMPTS, asked, close, fill, history
from tests.support.models.tiny_models import FAMILIES, small_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = "cuda"


def on_device(**changes: object) -> GraphedTransformer:
    return GraphedTransformer(small_model(dtype=torch.float64, **changes).to(DEVICE).pack())


@pytest.mark.parametrize("family", FAMILIES)
def test_replays_score_as_the_cpu_does(family):
    eager, graphed = small_model(dtype=torch.float64, **FAMILIES[family]).pack(), on_device(**FAMILIES[family])
    for call, (wanted, found) in history([eager, graphed], 5, 60, 7):
        real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
        close(real(found.logits.cpu()), real(wanted.logits))
    assert graphed.counts.passes_in_graphs > 30
    assert graphed.counts.captures > 5


@pytest.mark.parametrize("bitwise", [False, True], ids=["default", "bitwise"])
@pytest.mark.parametrize("attention", ["masked", "chunked", "triton"])
def test_each_attention_scores_as_the_cpu_does(attention, bitwise):
    if bitwise and attention == "masked":
        pytest.skip("the sums of masked attention depend on the pass, so it cannot be bitwise")
    for family in ("llama", "mistral"):
        shape = {**FAMILIES[family], "head_dim": 16}
        eager, model = small_model(**shape).pack(), small_model(**shape).to(DEVICE).pack()
        graphed = GraphedTransformer(model, bitwise=bitwise, attention=attention)
        for call, (wanted, found) in history([eager, graphed], 5, 60, 7):
            real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
            torch.testing.assert_close(real(found.logits.cpu()), real(wanted.logits), rtol=1e-3, atol=1e-3)
        assert graphed.counts.passes_in_graphs > 10


@pytest.mark.parametrize("attention", ["chunked", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95)])
def test_every_strategy_writes_plain_decodings_tokens(sampling, dtype, attention):
    """The oracle's own check of every bucket has run before."""
    model, small = (small_model(dtype=dtype, head_dim=16, num_layers=layers).to(DEVICE).pack() for layers in (2, 1))
    graphed = GraphedTransformer(model, bitwise=True, attention=attention)
    plain = SpeculativeDecoder(graphed, rule="coupled").generate(PROMPTS, 200, sampling, batch_size=1)
    draft = GraphedTransformer(small)
    for source in (
        drafts.PromptLookup(4),
        drafts.SmallTransformer(draft, 3),
        drafts.SmallTransformer(draft, tree=Kary(2, 2)),
    ):
        for batch in (1, 3):
            found = SpeculativeDecoder(graphed, source, "coupled").generate(PROMPTS, 200, sampling, batch_size=batch)
            assert (found.tokens, found.exactness) == (plain.tokens, "exact")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_no_call_waits_for_the_device():
    """Passes over chains, passes over trees, and chains that the device drafts."""
    graphed, generator = on_device(), torch.Generator().manual_seed(0)
    cache = graphed.new_cache(5, 128)
    fill([graphed], [cache], [9, 30, 0, 64, 17], generator)
    rows, acts = np.array([4, 1, 0]), []
    for tree in (False, True):
        call = asked(3, 5, tree, rows, generator)
        call.tokens, call.num_nodes = call.tokens.to(DEVICE), call.num_nodes.to(DEVICE)
        call.parents = None if call.parents is None else call.parents.to(DEVICE)
        acts.append(partial(call.of, graphed, cache))
    given = np.array([[1, 2], [3, 4], [5, 6]]), np.array([2, 1, 2]), cache, rows, np.array([3, 1, 2])
    acts.append(lambda: graphed.device_chains(*given))
    for act in acts:
        before = graphed.counts.passes_in_graphs
        for _ in range(2):  # the second one is captured, which waits
            act()
        torch.cuda.set_sync_debug_mode("error")
        try:
            act()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert graphed.counts.passes_in_graphs == before + 2


def test_chains_of_the_device_are_those_of_single_passes():
    """Where scores have the same bits in every pass, or no two are near each other; NaN is told of its row alone."""
    for dtype, given in (
        (torch.float64, {"attention": "masked"}),
        (torch.float32, {"attention": "chunked", "bitwise": True}),
        (torch.float32, {"attention": "triton", "bitwise": True}),
        (torch.bfloat16, {"attention": "triton", "bitwise": True}),
    ):
        graphed = GraphedTransformer(small_model(dtype=dtype, head_dim=16).to(DEVICE).pack(), **given)
        for num_rows in (1, 3, 8):
            before = graphed.counts.passes_in_graphs
            compare([graphed, graphed], num_rows)
            assert graphed.counts.passes_in_graphs > before + 20, given
    assert compare(models(True, DEVICE), 8)


@pytest.mark.parametrize("size", [1000, 32000])
def test_a_law_has_the_bits_that_it_has_among_others(size):
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 20, size, generator=generator)).to(DEVICE)
    asked = np.repeat([[0.8], [0.0], [0.95], [0.0]], 4, axis=1)
    there = torch.from_numpy(asked).to(DEVICE)
    laws = torch_probs(logits, asked, there)
    for row, node in ((0, 0), (1, 7), (3, 19)):
        alone = torch_probs(logits[row : row + 1, node : node + 1], asked[:, :1], there[:, :1])
        assert torch.equal(alone[0, 0], laws[row, node])


def test_decoding_on_the_device_emits_what_the_cpu_does():
    eager, graphed = small_model(dtype=torch.float64).pack(), on_device()
    small = [small_model(dtype=torch.float64, num_layers=1) for _ in range(2)]
    small_eager, small_graphed = small[0].pack(), GraphedTransformer(small[1].to(DEVICE).pack())
    for draft, other in (
        (None, None),
        (drafts.PromptLookup(4), drafts.PromptLookup(4)),
        (drafts.SmallTransformer(small_eager, 4), drafts.SmallTransformer(small_graphed, 4)),
        (drafts.SmallTransformer(eager, 4), drafts.SmallTransformer(on_device(), 4)),
    ):
        wanted = SpeculativeDecoder(eager, draft).generate(PROMPTS, 40)
        found = SpeculativeDecoder(graphed, other).generate(PROMPTS, 40)
        assert found.tokens == wanted.tokens
        assert found.stats.accepted_at_position == wanted.stats.accepted_at_position
    assert small_graphed.counts.passes_in_graphs > 10


def put_states(head, cache, lengths, generator):
    """Let a head of any device know random hidden states of positions, other ones than before."""
    states = [torch.randn(len(lengths), max(lengths), 32, generator=generator, dtype=torch.float64) for _ in range(3)]
    rows, counts = np.arange(len(lengths)), np.array(lengths)
    cache.reset(rows)
    head.put(Features(rows, np.zeros_like(rows), counts, tuple(x.to(head.device, head.dtype) for x in states)), cache)


def test_a_head_scores_and_drafts_as_the_cpus_does():
    """Every shape comes three times: as it is, captured, and replayed; by masked attention, then by Triton's."""
    for dtype in (torch.float64, torch.float32):
        compare_heads(dtype)


def compare_heads(dtype):
    made = [small_model(dtype=dtype).to(place).pack() for place in ("cpu", DEVICE)]
    heads = [head_beside(GraphedTransformer(model)) for model in made]
    caches, shown = [head.new_cache(5, 150) for head in heads], []
    near = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    for seed in range(12):
        chance, lengths = np.random.default_rng(seed), [9, 40, 3, 130, 1 + seed]
        rows, tokens = np.array([3, 0, 4]), torch.from_numpy(chance.integers(0, 23, (3, 2)))
        tree = torch.tensor([[-1, -1, 0, 1, 1]]).repeat(3, 1)
        nodes = torch.from_numpy(chance.integers(0, 23, (3, 5)))
        for head, cache in zip(heads, caches, strict=True):
            put_states(head, cache, lengths, torch.Generator().manual_seed(seed))
            found = [head.score(tokens, None, torch.tensor([2, 2, 1]), cache, rows, "last").logits[:2]]
            cache.commit(rows, None, np.array([2, 2, 1]))
            cache.truncate(rows, np.array([2, 2, 0]))
            for first, end in ((0, 2), (2, 5)):
                part = nodes[:, :end], tree[:, :end], torch.full((3,), end)
                found.append(head.score(*part, cache, rows, first=first).logits)
            asked = nodes[:, :2].numpy(), np.array([2, 1, 1]), cache, rows, np.array([4, 2, 3])
            chains = head.device_chains(*asked).tokens
            # In single precision two ids may be too close for the likelier one to be the same.
            found.append(chains if dtype == torch.float64 else chains.new_zeros(()))
            shown.append([values.cpu() for values in found])
        wanted, there = shown[-2:]
        for one, other in zip(wanted, there, strict=True):
            torch.testing.assert_close(other, one, **near)
    counts = heads[1].counts
    assert counts.passes_in_graphs > 4 * counts.passes_outside
    assert counts.captures == counts.graphs >= 5


def test_runs_with_a_head_are_the_cpus():
    makers = (
        (head_beside, lambda head: drafts.Eagle3(head, 4)),
        (head_beside, lambda head: drafts.Eagle3(head, tree=Kary(2, 2))),
        (block_beside, lambda head: drafts.BlockDrafter(head)),
        (block_beside, lambda head: drafts.BlockDrafter(head, tree=Kary(2, 2))),
    )
    for sampling in (SamplingParams(), SamplingParams(temperature=0.8)):
        for beside, make in makers:
            found = []
            for place in ("cpu", DEVICE):
                oracle = GraphedTransformer(small_model(dtype=torch.float64).to(place).pack())
                head = beside(oracle)
                run = SpeculativeDecoder(oracle, make(head), "coupled").generate(PROMPTS, 60, sampling, batch_size=3)
                found.append((run.tokens, run.stats.num_drafted, run.stats.num_accepted))
            assert found[0] == found[1]
            assert head.counts.passes_in_graphs > 10


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_no_call_of_a_head_waits_for_the_device():
    head = head_beside(on_device())
    cache, rows, counts = head.new_cache(5, 128), np.array([4, 1, 0]), np.array([5, 2, 3])
    states = tuple(torch.randn(3, 6, 32, dtype=torch.float64, device=DEVICE) for _ in range(3))
    columns, zero = np.array([[0, 2, 3, 4, 5]] * 3), np.zeros_like(counts)
    ids = np.full((3, 5), 7)
    blocks = block_beside(head.oracle)
    held, pending = blocks.new_cache(5, 128), torch.ones(3, dtype=torch.int64, device=DEVICE)

    def step():
        head.put(Features(rows, zero, counts, states, columns), cache)
        head.score(torch.from_numpy(ids), None, torch.from_numpy(counts), cache, rows, "last")
        head.device_chains(ids, counts, cache, rows, np.array([3, 2, 1]))
        held.truncate(rows, zero)
        blocks.put(Features(rows, zero, counts, states[:2], columns), held)
        blocks.open_block(held, rows, pending, 3).logits(0, pending.unsqueeze(1))
        blocks.device_blocks(held, rows, counts, np.array([3, 1, 2]))

    for _ in range(2):  # the second one is captured, which waits
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert head.counts.passes_in_graphs == blocks.counts.passes_in_graphs == 6
