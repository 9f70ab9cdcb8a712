"""On a CUDA device, where there is one: real graphs score as the CPU's eager passes do, and no call waits."""

from functools import partial

import numpy as np
import pytest
import torch

import drafts
from oracles.graphed import GraphedTransformer
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.kernels.filters import torch_probs
from tests.graphed.chain_histories import compare, models
from tests.graphed.histories import PROMPTS, asked, close, fill, history
from tests.support.models import FAMILIES, small_model

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
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_each_attention_scores_as_the_cpu_does(family, attention, bitwise):
    if bitwise and attention == "masked":
        pytest.skip("the sums of masked attention depend on the pass, so it cannot be bitwise")
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
