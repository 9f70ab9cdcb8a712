"""Without a device: nothing in a pass waits for one, one copy goes to it, and everything lies where it must."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracles import Transformer, TransformerConfig
from oracles.graphed import GraphedTransformer
from oracles.graphed.buckets import bucket_of
from oracles.graphed.chunks import ChunkedAttention
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import Part, Way, run_pass
from oracles.graphed.upload import Packed
from specdec.kernels import filters
from tests.graphed.fakes import CUDA, fakes
from tests.graphed.histories import asked, fill
from tests.support.models import FAMILIES, small_model
from tests.support.pairwise import pairwise

# What makes the host wait for the device, or gives a shape that depends on what a tensor holds.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero")


class Watch(TorchDispatchMode):
    """Count operations by name, copies between devices, and other operations on tensors of several devices.

    The last ones may be legal: a single number on the host goes to the device with the call, or by a copy that waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.crossings: Counter[tuple[str, str]] = Counter()
        self.mixed: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.operations[name] += 1
        out = function(*args, **(kwargs or {}))
        if name in ("copy_", "_to_copy"):
            source = args[1] if name == "copy_" else args[0]
            if source.device.type != out.device.type:
                self.crossings[source.device.type, out.device.type] += 1
        elif len({leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}) > 1:
            self.mixed[name] += 1
        # A mask as an index is a search for its true entries.
        if name in ("index", "index_put_"):
            masks = [
                leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool
            ]
            self.operations["index by a mask"] += len(masks)
        return out

    @property
    def waits(self) -> dict[str, int]:
        """How often each operation that waits was met."""
        return {name: self.operations[name] for name in (*WAITING, "index by a mask") if self.operations[name]}


def fake_model(device: torch.device = CUDA, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Transformer:
    """Return a packed transformer without values, in a fake mode."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    config = TransformerConfig(**{"vocab_size": 23, "max_context": 256, **shape, **changes})
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a module of fake parameters cannot be moved
    try:
        with device:
            model = Transformer(config, seed=None)
    finally:
        torch.set_default_dtype(default)
    return model.pack()


def test_the_watch_sees_what_waits():
    x = torch.arange(6)
    with Watch() as watch:
        x[x > 2]
        x.nonzero()
        x.sum().item()
        torch.masked_select(x, x > 3)
        x.unique()
        bool(x.sum() > 2)
    expected = {"_local_scalar_dense": 2, "nonzero": 1, "masked_select": 1, "_unique2": 1, "index by a mask": 1}
    assert watch.waits == expected


TREE, BITWISE = {"chains": False, "trees": True}, {"default": False, "bitwise": True}


@pairwise(
    {
        "family": tuple(FAMILIES),
        "bitwise": BITWISE,
        "rows": {"whole": [1, 3, 0, 2, 4], "gathered": [3, 0]},
        "tree": TREE,
    }
)
def test_a_pass_has_no_operation_that_waits(bitwise, family, rows, tree, monkeypatch):
    monkeypatch.setattr(GraphedTransformer, "_check_bits", lambda self: None)
    model = GraphedTransformer(small_model(**FAMILIES[family]).pack(), bitwise=bitwise)
    cache, generator = model.new_cache(5, 100), torch.Generator().manual_seed(0)
    fill([model], [cache], [9, 30, 0, 64, 17], generator)
    call = asked(len(rows), 5, tree, np.array(rows), generator)
    seen = []

    def watched(*given: Any) -> Any:
        with Watch() as watch:
            outputs = run_pass(*given)
        seen.append(watch)
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oracles.graphed.calls.run_pass", watched)
        call.of(model, cache)
    (watch,) = seen
    assert watch.waits == {}
    assert watch.operations["index_put_"] == 4


@pairwise(
    {
        "bitwise": BITWISE,
        "on_host": {"from the host": True, "from the device": False},
        "tree": TREE,
        "want": ("all", "last", "none"),
    }
)
def test_a_call_is_one_copy_to_the_device_and_none_back(bitwise, on_host, tree, want, monkeypatch):
    monkeypatch.setattr(GraphedTransformer, "_check_bits", lambda self: None)
    with fakes():
        model = GraphedTransformer(fake_model(), bitwise=bitwise)
        cache, rows = model.new_cache(4, 100, 10**9), np.array([2, 0, 1])
        place = torch.device("cpu") if on_host else CUDA
        tokens, nodes = torch.zeros(3, 5, dtype=torch.int64, device=place), torch.full((3,), 5, device=place)
        # Parents on the host are compared with a chain's, which fake ones cannot be.
        parents = torch.zeros(3, 5, dtype=torch.int64, device=CUDA) if tree else None
        with Watch() as watch:
            scores = model.score(tokens, parents, nodes, cache, rows, want, (0, 1))
        assert dict(watch.crossings) == {("cpu", "cuda"): 1}
        assert (watch.waits, dict(watch.mixed), model.uploads) == ({}, {}, 1)
        assert all(layer.device == CUDA and layer.dtype == torch.bfloat16 for layer in scores.hidden)
        shapes = {"all": (3, 5, 23), "last": (3, 1, 23)}
        if want == "none":
            assert scores.logits is None
        else:
            assert (scores.logits.device, scores.logits.dtype) == (CUDA, torch.float32)
            assert tuple(scores.logits.shape) == shapes[want]


def test_keeping_a_path_is_one_copy_to_the_device():
    with fakes():
        model = GraphedTransformer(fake_model())
        cache, rows = model.new_cache(4, 100, 10**9), np.array([2, 0])
        cache.reserve(rows, 5)
        path = torch.zeros(2, 5, dtype=torch.int64, device=CUDA)
        with Watch() as watch:
            cache.commit(rows, path, np.array([3, 1]))
        assert dict(watch.crossings) == {}, "it goes with the next pass"
        with Watch() as watch:
            cache.memory.settle()
        assert dict(watch.crossings) == {("cpu", "cuda"): 1}
        with Watch() as watch:
            cache.reset(rows)
        assert dict(watch.crossings) == {("cpu", "cuda"): 1}


@pairwise(
    {
        "family": tuple(FAMILIES),
        "way": {"default": Way(), "bitwise": Way(ChunkedAttention, in_tiles=True)},
        "dtype": (torch.float32, torch.bfloat16),
        "cache_rows": {"whole": 4, "gathered": 9},
        "tree": {"chains": 0, "trees": 8},
    }
)
def test_a_pass_stays_on_the_device(way, dtype, family, cache_rows, tree):
    with fakes():
        model = fake_model(dtype=dtype, **FAMILIES[family])
        memory = Memory(model.config, cache_rows, 128, dtype, CUDA)
        bucket = bucket_of(slice(0, 4), slice(0, 6), tree, cache_rows)
        packed = Packed.of(torch.zeros(Packed.size(bucket), dtype=torch.int64, device=CUDA), bucket)
        # The first pass computes the rotations, on the host; a graphed oracle does so when it is made.
        run = partial(run_pass, model, way, memory, bucket, Part((0, 2), (0,)), packed, None)
        run()
        with Watch() as watch:
            outputs = run()
        assert (dict(watch.crossings), watch.waits, dict(watch.mixed)) == ({}, {}, {})
        assert {(output.device, output.dtype, tuple(output.shape)) for output in outputs} == {
            (CUDA, dtype, (bucket.nodes, 32))
        }


def test_a_mixed_placement_fails_by_name():
    with fakes():
        there, here = GraphedTransformer(fake_model()), GraphedTransformer(fake_model(torch.device("cpu")))
        caches = [model.new_cache(1, 64, 10**9) for model in (there, here)]
        row, size = np.array([0]), {"dtype": torch.int64, "device": CUDA}
        tokens, nodes = torch.zeros(1, 2, **size), torch.ones(1, **size)
        with pytest.raises(ValueError, match=r"^cache lies on cpu, and the oracle on cuda:0: give it there$"):
            there.score(tokens, None, nodes, caches[1], row)
        with pytest.raises(ValueError, match="tokens lies on cuda:0, and the oracle on cpu: give it there or the host"):
            here.score(tokens, None, nodes, caches[1], row)
        with pytest.raises(ValueError, match="num_nodes lies on cuda:1, and the oracle on cuda:0"):
            there.score(tokens, None, nodes.to("cuda:1"), caches[0], row)
        with pytest.raises(ValueError, match="parents lies on cuda:0, and the oracle on cpu"):
            here.score(tokens.to("cpu"), tokens, nodes.to("cpu"), caches[1], row)
        stream = torch.zeros(1, 2, 32, dtype=torch.bfloat16, device="cpu")
        with pytest.raises(ValueError, match=r"^stream lies on cpu, and the oracle on cuda:0: give it there$"):
            there.score(tokens, None, nodes, caches[0], row, layers=(1, 2), stream=stream)


def test_a_mixed_placement_within_a_pass_is_no_copy():
    """A tensor of a pass that was left on the host is an error of torch, and never a silent transfer."""
    with fakes():
        model = fake_model()
        memory = Memory(model.config, 2, 64, model.dtype, CUDA)
        bucket = bucket_of(slice(0, 2), slice(0, 2), 0, 2)
        packed = Packed.of(torch.zeros(Packed.size(bucket), dtype=torch.int64, device="cpu"), bucket)
        with pytest.raises(RuntimeError, match="device"):
            run_pass(model, Way(), memory, bucket, Part((0, 2), ()), packed, None)


class Sums(TorchDispatchMode):
    """Keep the shapes of which floating-point numbers are summed on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, set[tuple[int, ...]]] = {"cumsum": set(), "sum": set()}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in self.shapes and args[0].is_floating_point():
            assert args[0].device.type == "cuda"
            self.shapes[name].add(tuple(args[0].shape))
        return function(*args, **(kwargs or {}))


def test_laws_are_summed_on_the_device_in_tiles_of_one_shape():
    """CUDA scans one law in another order than several."""
    with fakes(), Sums() as seen:
        for rows, nodes in ((1, 1), (1, 6), (3, 50)):
            same = np.repeat([[0.8], [0.0], [0.95], [0.01]], rows, axis=1)
            there = torch.empty(4, rows, dtype=torch.float64, device=CUDA)
            laws = filters.torch_probs(torch.empty(rows, nodes, 1000, device=CUDA), same, there)
            assert laws.shape == (rows, nodes, 1000)
    assert seen.shapes == {"cumsum": {(64, 1008)}, "sum": {(64, 1008)}}


@pytest.mark.parametrize("count", [1, 64, 65, 130])
def test_sums_by_tiles_are_those_of_each_law(count):
    laws = torch.rand(count, 2, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    for compute in (partial(torch.cumsum, dim=-1), partial(torch.sum, dim=-1, keepdim=True)):
        torch.testing.assert_close(filters._by_tiles(compute, laws), compute(laws), rtol=1e-14, atol=0.0)
