"""The Triton kernels, interpreted or on a device: whom a query meets, and where; and that they can be compiled."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from oracles.graphed import GraphedTransformer, triton_attention, ways
from oracles.graphed.buckets import bucket_of
from oracles.graphed.chunks import CHUNK, ChunkedAttention
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.triton_attention import TritonAttention, missing_requirement
from oracles.graphed.upload import Call, Upload
from oracles.transformer.attention import visible_slots
from oracles.transformer.config import TransformerConfig
from tests.graphed.histories import history
from tests.support.models.scoring import random_tree
from tests.support.models.tiny_models import FAMILIES, small_model

pytest.importorskip("triton", reason="the package triton is missing")


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pass:
    """A pass of random rows: its nodes, what is cached, and what one layer asks and writes."""

    def __init__(self, heads: int, groups: int, size: int, window: int | None, starts: list[int], width: int,
                 tree: bool, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:  # fmt: skip
        generator, num_rows = torch.Generator().manual_seed(seed), len(starts)
        self.config = TransformerConfig(
            23, heads * groups * size, 1, heads * groups, 8, 4096, num_kv_heads=heads, head_dim=size,
            sliding_window=window,
        )  # fmt: skip
        capacity = -(-(max(starts) + width) // 64) * 64
        self.memory = Memory(self.config, num_rows + 1, capacity, dtype, DEVICE)
        self.memory.slots.copy_(torch.randn(self.memory.slots.shape, generator=generator))
        self.memory.lines[0][0][-1] = self.memory.lines[0][1][-1] = float("nan")
        counts = torch.randint(1, width + 1, (num_rows,), generator=generator)
        counts[0] = width
        parents = random_tree(num_rows, width, generator) if tree else None
        call = Call(torch.zeros(num_rows, width, dtype=torch.int64), parents, counts,
                    np.arange(num_rows)[::-1].copy(), np.array(starts), 0, None)  # fmt: skip
        bucket = bucket_of(slice(0, num_rows), slice(0, width), width if tree else 0, num_rows + 1)
        self.nodes = PassNodes(self.config, Upload(DEVICE)(call, bucket), self.memory)
        shape = (bucket.nodes, heads * groups, size)
        self.query = torch.randn(shape, generator=generator).to(DEVICE, dtype)
        self.key, self.value = (
            torch.randn(bucket.nodes, heads, size, generator=generator).to(DEVICE, dtype) for _ in "kv"
        )

    def by(self, attention: Any) -> torch.Tensor:
        return attention(self.nodes)(0, self.query, self.key, self.value)

    def wanted(self) -> torch.Tensor:
        """What float64 and the library make of it; zeros for padding."""
        nodes, config, groups = self.nodes, self.config, self.config.num_heads // self.config.kv_heads
        nodes.write(0, self.key, self.value)
        span = self.memory.capacity + nodes.bucket.total
        seen = visible_slots(span, nodes.start, nodes.positions, config.sliding_window, nodes.ancestors, nodes.depth)
        query = self.query.view(nodes.bucket.rows, nodes.bucket.width, -1, config.head_size).transpose(1, 2).double()
        keys, values = (
            part.index_select(0, nodes.rows).repeat_interleave(groups, 1).double() for part in self.memory.slots[0]
        )
        found = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=seen[:, None, :, : self.memory.capacity]
        )
        found = found.transpose(1, 2).flatten(0, 1).flatten(1)
        return found.masked_fill(~nodes.is_real.flatten().unsqueeze(1), 0)


CASES = {
    "one query of a row": (2, 1, 16, None, [3], 1, False),
    "an empty row": (1, 2, 16, None, [0, 5], 3, False),
    "rows of many lengths": (2, 3, 16, None, [CHUNK - 2, 0, 2 * CHUNK, CHUNK, 70], 5, False),
    "more queries than a tile": (1, 4, 16, None, [40, 300], 11, False),
    "more heads than a tile": (1, 24, 16, None, [40, 300], 3, True),
    "heads of odd size": (2, 2, 24, None, [100], 2, False),
    "a window within a block": (2, 2, 16, 5, [CHUNK - 2, 0, 300], 6, False),
    "a window over chunks": (1, 2, 16, CHUNK + 9, [2 * CHUNK + 40, 7], 6, True),
    "trees": (2, 2, 16, None, [CHUNK - 3, 0, 63, 2 * CHUNK], 7, True),
    "trees in a window": (1, 2, 16, 4, [CHUNK - 3, 0, 61], 9, True),
    "a tree over blocks": (1, 1, 16, None, [60], 80, True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_attend_to_what_a_node_sees(case):
    given = Pass(*CASES[case])
    wanted, found = given.wanted(), given.by(TritonAttention)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given.by(ChunkedAttention).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_rows_that_run_in_several_launches_are_those_of_one(tree, monkeypatch):
    given = Pass(2, 2, 16, None, [70, 3, 300], 4, tree)
    wanted = given.by(TritonAttention)
    for most in (1, 2 * 4 * 4 * 2 * 16):
        monkeypatch.setattr(triton_attention, "_MOST_HELD", most)
        assert TritonAttention(given.nodes)._rows_at_once == (1 if most == 1 else 2)
        assert torch.equal(given.by(TritonAttention), wanted)


def test_slots_that_no_node_sees_are_not_read():
    given = Pass(2, 2, 16, None, [70, 3], 4, True)
    wanted = given.by(TritonAttention)
    for row, start, count in zip((1, 0), (70, 3), given.nodes.is_real.sum(1).tolist(), strict=False):
        given.memory.slots[:, :, row, :, start + count :] = float("nan")
    given.memory.slots[:, :, 2] = float("nan")
    assert torch.equal(given.by(TritonAttention), wanted)


def test_half_precision_is_summed_in_float32():
    """The interpreter has no bfloat16."""
    given = Pass(1, 2, 16, None, [300, 9], 4, True, torch.float16)
    found = given.by(TritonAttention)
    assert found.dtype == torch.float16
    # Weights and results are rounded.
    least = 4 * torch.finfo(torch.float16).eps
    torch.testing.assert_close(found.double(), given.wanted(), rtol=least, atol=least)


@pytest.mark.parametrize(
    ("family", "bitwise"), [("mistral", True), pytest.param("llama", False, marks=pytest.mark.long)]
)
def test_whole_passes_by_the_kernels_score_as_eager_ones(family, bitwise, monkeypatch):
    monkeypatch.setattr(ways, "missing_requirement", lambda *_: None)
    monkeypatch.setattr(GraphedTransformer, "_check_bits", lambda self: None)
    shape = {**FAMILIES[family], "head_dim": 16}
    eager = small_model(**shape).pack()
    model = GraphedTransformer(small_model(**shape).to(DEVICE).pack(), bitwise=bitwise)
    assert model._calls.passes.way.attention is TritonAttention
    for call, (wanted, found) in history([eager, model], 2, 3, 5):
        real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
        torch.testing.assert_close(real(found.logits.cpu()), real(wanted.logits), rtol=1e-4, atol=1e-4)


def test_where_the_kernels_cannot_run_the_reason_is_told(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    device = torch.device("cuda:1")
    assert missing_requirement(device, torch.bfloat16, 64) is None
    assert "on CUDA devices, and the oracle is on cpu" in missing_requirement(torch.device("cpu"), torch.bfloat16, 64)
    assert "the dtype is torch.float64" in missing_requirement(device, torch.float64, 64)
    assert "a head is 40 bytes, no multiple of 16" in missing_requirement(device, torch.bfloat16, 20)
    assert missing_requirement(device, torch.float32, 20) is None
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    assert (
        missing_requirement(device, torch.float32, 20) == "its kernels need compute capability 8.0, and cuda:1 has 7.5"
    )
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing_requirement(device, torch.bfloat16, 64) == "the package triton is missing"


@pytest.mark.parametrize(("bitwise", "without"), [(False, "masked"), (True, "chunked")])
def test_the_kernels_attend_where_they_run(bitwise, without, monkeypatch):
    model = small_model().pack()
    placed = model.device, model.dtype, model.config.head_size
    assert ways.way_of(*placed, bitwise, None).attention is ways.ATTENTIONS[without]
    monkeypatch.setattr(ways, "missing_requirement", lambda *_: None)
    assert ways.way_of(*placed, bitwise, None).attention is TritonAttention
    assert ways.way_of(*placed, bitwise, without).attention is ways.ATTENTIONS[without]


def test_the_kernels_are_compiled_once_for_all_passes_and_for_devices_that_are_not_there(tmp_path):
    """What Triton compiles in of a pass's numbers and addresses would be another kernel, with bits of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.graphed.compiling"], env=environment, capture_output=True, text=True, check=True
    )
    kernels = json.loads(done.stdout)
    assert len(kernels) == 4
    for kernel in kernels:
        assert kernel["depends on"] == ["queries", "keys", "values"][: 3 * (kernel["name"] == "attend_to_chunks")]
        assert kernel["cubin"] > 1000
        # Keys before a tree, in a tree and in a chain meet the same two instructions.
        assert kernel["products"] == 2 * (kernel["name"] == "attend_to_chunks")
        # What a multiprocessor of compute capability 8.6 or 8.9 has: the least of those in use.
        assert kernel["shared"] <= 99 * 1024
        tensor_cores = kernel["name"] == "attend_to_chunks" and kernel["dtype"] == "bf16"
        assert kernel["products on tensor cores"] == tensor_cores
