"""On a device that is not there: nothing in a call waits, one copy goes to it, and everything lies where it must."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oracles.graphed import GraphedTransformer
from oracles.graphed.buckets import bucket_of
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import PassMode, PassPart, run_pass
from oracles.graphed.upload import PassIntegers
from specdec.kernels import filters
from tests.graphed.emulated import CUDA, emulated_device
from tests.graphed.pairs import moved
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import pairwise


def model_there(bitwise: bool = False, **changes: Any) -> GraphedTransformer:
    """Return a graphed oracle on the device, in a mode that emulates it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphedTransformer, "_check_bits", lambda self: None)
        return GraphedTransformer(moved(small_model(**changes)).pack(), bitwise=bitwise)


@pairwise(
    {
        "family": tuple(FAMILIES),
        "bitwise": {"default": False, "bitwise": True},
        "dtype": (torch.float32, torch.bfloat16),
        "cache_rows": {"whole": 4, "gathered": 9},
        "tree": {"chains": False, "trees": True},
        "on_host": {"from the host": True, "from the device": False},
        "want": ("all", "last", "none"),
    }
)
def test_a_call_is_one_copy_to_the_device_and_none_back(family, bitwise, dtype, cache_rows, tree, on_host, want):
    with emulated_device() as device:
        model = model_there(bitwise, dtype=dtype, **FAMILIES[family])
        cache, rows = model.new_cache(cache_rows, 100, 10**9), np.array([2, 0, 1])
        place = torch.device("cpu") if on_host else CUDA
        tokens, nodes = torch.zeros(3, 5, dtype=torch.int64, device=place), torch.full((3,), 5, device=place)
        # On the host they would be compared with a chain's.
        parents = torch.arange(-1, 4, device=CUDA).expand(3, 5) if tree else None
        device.reset()
        scores = model.score(tokens, parents, nodes, cache, rows, want, (0, 1))
        assert (device.seen, device.mixed, model.uploads) == ((1, 0, {}), {}, 1)
        assert all(
            (layer.device, layer.dtype, tuple(layer.shape)) == (CUDA, dtype, (3, 5, 32)) for layer in scores.hidden
        )
        shapes = {"all": (3, 5, 23), "last": (3, 1, 23)}
        if want == "none":
            assert scores.logits is None
        else:
            assert (scores.logits.device, scores.logits.dtype) == (CUDA, torch.float32)
            assert tuple(scores.logits.shape) == shapes[want]


def test_keeping_a_path_is_one_copy_to_the_device():
    with emulated_device() as device:
        model = model_there()
        cache, rows = model.new_cache(4, 100, 10**9), np.array([2, 0])
        cache.reserve(rows, 5)
        path = torch.zeros(2, 5, dtype=torch.int64, device=CUDA)
        for move, seen in (
            (lambda: cache.commit(rows, path, np.array([3, 1])), (0, 0, {})),  # it goes with the next pass
            (cache.memory.settle, (1, 0, {})),
            (lambda: cache.reset(rows), (1, 0, {})),
        ):
            device.reset()
            move()
            assert (device.seen, device.mixed) == (seen, {})


def test_a_mixed_placement_fails_by_name():
    here, elsewhere = GraphedTransformer(small_model().pack()), torch.ones(1, dtype=torch.int64, device="meta")
    with emulated_device():
        there = model_there()
        caches = [model.new_cache(1, 64, 10**9) for model in (there, here)]
        row, size = np.array([0]), {"dtype": torch.int64, "device": CUDA}
        tokens, nodes = torch.zeros(1, 2, **size), torch.ones(1, **size)
        with pytest.raises(ValueError, match=r"^cache lies on cpu, and the oracle on cuda:0: give it there$"):
            there.score(tokens, None, nodes, caches[1], row)
        with pytest.raises(ValueError, match="tokens lies on cuda:0, and the oracle on cpu: give it there or the host"):
            here.score(tokens, None, nodes, caches[1], row)
        with pytest.raises(ValueError, match="num_nodes lies on meta, and the oracle on cuda:0"):
            there.score(tokens, None, elsewhere, caches[0], row)
        with pytest.raises(ValueError, match="parents lies on cuda:0, and the oracle on cpu"):
            here.score(tokens.to("cpu"), tokens, nodes.to("cpu"), caches[1], row)
        stream = torch.zeros(1, 2, 32, device="cpu")
        with pytest.raises(ValueError, match=r"^stream lies on cpu, and the oracle on cuda:0: give it there$"):
            there.score(tokens, None, nodes, caches[0], row, layers=(1, 2), stream=stream)


def test_a_mixed_placement_within_a_pass_is_no_copy():
    """A tensor of a pass that was left on the host is an error of torch, and never a silent transfer."""
    with emulated_device():
        model = moved(small_model()).pack()
        memory = Memory(model.config, 2, 64, model.dtype, CUDA)
        bucket = bucket_of(slice(0, 2), slice(0, 2), 0, 2)
        packed = PassIntegers.of(torch.zeros(PassIntegers.size(bucket), dtype=torch.int64, device="cpu"), bucket)
        with pytest.raises(RuntimeError, match="device"):
            run_pass(model, PassMode(), memory, PassPart((0, 2), ()), packed, None)


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
    with emulated_device(), Sums() as seen:
        for rows, nodes in ((1, 1), (1, 6), (3, 50)):
            same = np.repeat([[0.8], [0.0], [0.95], [0.01]], rows, axis=1)
            there = torch.empty(4, rows, dtype=torch.float64, device=CUDA)
            laws = filters.torch_probs(torch.empty(rows, nodes, 1000, device=CUDA), same, there)
            assert laws.shape == (rows, nodes, 1000)
    assert seen.shapes == {"cumsum": {(64, 1008)}, "sum": {(64, 1008)}}


def test_sums_by_tiles_are_those_of_each_law():
    for count in (1, 64, 65, 130):
        laws = torch.rand(count, 2, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
        for compute in (partial(torch.cumsum, dim=-1), partial(torch.sum, dim=-1, keepdim=True)):
            torch.testing.assert_close(filters._by_tiles(compute, laws), compute(laws), rtol=1e-14, atol=0.0)
