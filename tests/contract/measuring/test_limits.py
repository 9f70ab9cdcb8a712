"""Operations, bytes and least times, held to counts of what a model touches and to loops that count one by one."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.harness.findings.model_shapes import model_shape, shape_of
from oracles import Transformer, TransformerConfig
from oracles.transformer.linear import Linear
from specdec.theory import WidthCurve, expected_tokens
from specdec.theory.limits import (
    ModelShape,
    Roofline,
    attention_work_cached,
    attention_work_naive,
    best_draft_length,
    break_even_width,
    context_of_equal_bytes,
    kv_cache_bytes,
    pass_cost,
    prefill_costs,
    visible_positions,
)
from tests.support.pairwise import pairwise

SHAPE = ModelShape(3, 32, 4, 2, 8, 40, 50)
CONFIG = TransformerConfig(
    vocab_size=50, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=40, max_context=64
)


def test_the_attention_of_the_arithmetic_checkpoint():
    """Prompt 9, 19 new tokens, width 384, six layers: the figures of the task, to the digits given."""
    naive, cached = attention_work_naive(9, 19, 384), attention_work_cached(9, 19, 384)
    assert (round(naive / 1e6, 2), round(cached / 1e6, 2), round(naive / cached, 2)) == (10.33, 0.53, 19.67)
    layers = attention_work_naive(9, 19, 384, 6), attention_work_cached(9, 19, 384, num_layers=6)
    assert tuple(round(work / 1e6, 2) for work in layers) == (61.99, 3.15)
    assert round(attention_work_cached(9, 19, 384, with_prefill=True) / 1e6, 2) == 0.58


@pytest.mark.parametrize("window", [None, 1, 4, 9])
def test_visible_positions_are_counted_as_by_loops(window):
    for context in range(12):
        for width in range(8):
            seen = sum(
                1 for at in range(context, context + width) for j in range(at + 1) if window is None or j > at - window
            )
            assert visible_positions(width, context, window) == seen


class CountingAttention:
    """Attend to nothing, and count what attention would multiply and touch."""

    def __init__(self, batch: int, width: int, context: int, window: int | None) -> None:
        self.batch, self.width, self.context, self.window = batch, width, context, window
        self.flops = self.numbers = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Take ``[B * N, H, D]`` and ``[B * N, K, D]``; return zeros ``[B * N, H * D]``."""
        for _ in range(self.batch):
            touched = set()
            for position in range(self.context, self.context + self.width):
                seen = {j for j in range(position + 1) if self.window is None or position - j < self.window}
                self.flops += len(seen) * 2 * 2 * query[0].numel()
                touched |= seen
            self.numbers += len(touched) * (key[0].numel() + value[0].numel())
        return torch.zeros_like(query).flatten(-2)


def counted(config: TransformerConfig, batch: int, width: int, context: int, num_logits: int) -> tuple[int, int, int]:
    """Return FLOPs, weights and cached numbers that a model's own layers touch in a pass."""
    model, flops, weights = Transformer(config), 0, 0

    def count(layer: Linear, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        nonlocal flops, weights
        assert layer.weight is not None
        flops += 2 * layer.weight.numel() * inputs[0].shape[:-1].numel()
        weights += layer.weight.numel()

    for module in model.modules():
        if isinstance(module, Linear):
            module.register_forward_hook(count)
    attend = CountingAttention(batch, width, context, config.sliding_window)
    positions = torch.arange(context, context + width).repeat(batch)
    (*_, stream) = model.model(torch.zeros(batch * width, dtype=torch.int64), positions, context + width, attend)
    model.head(stream.view(batch, width, -1)[:, width - num_logits :])
    return flops + attend.flops, weights, attend.numbers


@pytest.mark.parametrize(
    "options",
    [
        {}, {"gated": False, "norm": "layer"}, {"num_kv_heads": 1}, {"num_kv_heads": None, "head_dim": 12},
        {"sliding_window": 5}, {"sliding_window": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize(("batch", "width", "context", "num_logits"), [(1, 1, 0, 1), (2, 3, 7, 3), (3, 8, 4, 1)])
def test_a_pass_costs_what_its_layers_do(options, batch, width, context, num_logits):
    config = replace(CONFIG, **options)
    shape = model_shape(config, weight_bytes=2, cache_bytes=4)
    flops, weights, numbers = counted(config, batch, width, context, num_logits)
    cost = pass_cost(shape, batch, width, context, num_logits)
    assert (cost.flops, cost.weight_bytes, cost.cache_bytes) == (flops, 2 * weights, 4 * numbers)
    assert cost.bytes == 2 * weights + 4 * numbers
    assert cost.intensity == flops / cost.bytes
    assert cost.cache_share == 4 * numbers / cost.bytes


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cache_takes_the_memory_of_a_model_s_own(kv_heads, dtype):
    config = replace(CONFIG, head_dim=16, num_kv_heads=kv_heads)
    model = Transformer(config).to(dtype).eval()
    shape = shape_of(model)
    assert (shape.bytes_per_weight, shape.bytes_per_cached) == (dtype.itemsize, dtype.itemsize)
    assert kv_cache_bytes(shape, 64, num_rows=3) == model.new_cache(3, 64).bytes


# The cache that a window bounds, and rooflines, are worked out in tests/figures/of_studies.py.
def test_the_cache_is_as_large_as_the_weights_where_it_says():
    for rows in (1, 4):
        context = context_of_equal_bytes(SHAPE, rows)
        assert context is not None
        assert rows * context * SHAPE.cache_bytes_per_token == pytest.approx(SHAPE.weight_bytes)
        assert context_of_equal_bytes(replace(SHAPE, window=int(context) - 1), rows) is None
        assert context_of_equal_bytes(replace(SHAPE, window=int(context) + 1), rows) == context


@pairwise({
    "window": (None, 6), "flops": (1e9, 5e9, 20e9), "batch, context": {str(at): at for at in ((1, 0), (1, 40), (4, 7))}
})  # fmt: skip
def test_the_break_even_width_is_the_first_that_computes_as_long_as_it_reads(window, flops, batch, context):
    shape, roofline = replace(SHAPE, window=window), Roofline(1e9, flops)
    costs = [pass_cost(shape, batch, width, context) for width in range(1, 200)]
    assert all(a.intensity <= b.intensity for a, b in itertools.pairwise(costs))
    first = next(width for width, c in enumerate(costs, 1) if c.flops / flops >= c.bytes / 1e9)
    assert break_even_width(roofline, shape, batch, context) == first


def test_a_machine_that_computes_far_faster_than_it_reads_never_breaks_even():
    assert break_even_width(Roofline(1.0, 1e9), replace(SHAPE, window=4)) is None


def test_the_best_draft_length_is_the_best_of_all():
    curve = WidthCurve((1, 4, 9), (1.0, 1.3, 3.0))
    for alpha in (0.0, 0.4, 0.8, 0.95, 1.0):
        gains = {k: expected_tokens(alpha, k) / (curve(k + 1) + 0.1 * k) for k in range(9)}
        best = best_draft_length(alpha, curve, 0.1, longest=8)
        assert best.gain == pytest.approx(max(gains.values()), rel=1e-12)
        assert best.gain == pytest.approx(gains[best.length], rel=1e-12)
        assert best.tokens == pytest.approx(expected_tokens(alpha, best.length), rel=1e-12)
    assert best_draft_length(0.0, curve, 0.1, longest=8).length == 0
    assert best_draft_length(0.9, curve, 0.1, longest=0).gain == 1.0


def test_the_shape_of_a_configuration_has_its_matrices():
    for options in ({}, {"gated": False}, {"num_kv_heads": None, "head_dim": 12}, {"sliding_window": 5}):
        config = replace(CONFIG, **options)
        shape, model = model_shape(config, weight_bytes=2), Transformer(config)
        matrices = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, Linear))
        assert shape.layer_weights + shape.head_weights == matrices
        assert shape.weight_bytes == 2 * matrices
        assert shape.window == config.sliding_window


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(SHAPE, num_layers=0), "num_layers must be an integer, 1 or more, not 0"),
        (lambda: replace(SHAPE, vocab_size=2.5), "vocab_size must be an integer"),
        (lambda: replace(SHAPE, num_kv_heads=3), "num_kv_heads must divide num_heads 4, got 3"),
        (lambda: replace(SHAPE, window=0), "window must be an integer, 1 or more"),
        (lambda: replace(SHAPE, bytes_per_weight=0), "bytes_per_weight must be a finite number above 0"),
        (lambda: replace(SHAPE, bytes_per_cached=float("nan")), "bytes_per_cached"),
        (lambda: kv_cache_bytes(SHAPE, -1), "length must be an integer, 0 or more, not -1"),
        (lambda: kv_cache_bytes(SHAPE, 1, num_rows=0), "num_rows"),
        (lambda: context_of_equal_bytes(SHAPE, 0), "num_rows"),
        (lambda: visible_positions(1, -1), "context"),
        (lambda: visible_positions(1, 1, window=0), "window"),
        (lambda: attention_work_naive(0, 1, 8), "prompt"),
        (lambda: attention_work_cached(1, -1, 8), "generated"),
        (lambda: attention_work_cached(1, 1, True), "width"),
        (lambda: pass_cost(SHAPE, batch=0), "batch"),
        (lambda: pass_cost(SHAPE, width=0), "width"),
        (lambda: pass_cost(SHAPE, context=-1), "context"),
        (lambda: pass_cost(SHAPE, width=2, num_logits=3), "num_logits must be at most the width 2, got 3"),
        (lambda: prefill_costs(SHAPE, 0, 1), "length"),
        (lambda: prefill_costs(SHAPE, 4, 0), "chunk"),
        (lambda: Roofline(0.0, 1.0), "bytes_per_second"),
        (lambda: Roofline(1.0, float("inf")), "flops_per_second"),
        (lambda: Roofline(1.0, 1.0).share(pass_cost(SHAPE), 0.0), "seconds"),
        (lambda: best_draft_length(0.5, WidthCurve.linear(0.1), 0.1, -1), "longest"),
        (lambda: best_draft_length(1.5, WidthCurve.linear(0.1), 0.1, 2), "alpha"),
        (lambda: best_draft_length(0.5, WidthCurve.linear(0.1), -0.1, 0), "draft_cost"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
