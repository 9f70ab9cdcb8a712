"""Weights of GGUF files have ggml's values, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from oracles.checkpoints.gguf.storages import OTHER_STORAGES, STORAGES
from oracles.quantisation import QuantisedWeight

KINDS = [gguf.GGMLQuantizationType(number) for number in STORAGES]
# Where float16 numbers stand in a block.
HALVES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
# Zeros, the smallest subnormal, others, the smallest normal number, the largest.
EDGES = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x7BFF, 0xFBFF, 0x3C00], np.uint16)


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int = 40, blocks: int = 12, seed: int = 0) -> np.ndarray:
    """Return ``[rows, bytes]`` of random blocks whose float16 numbers are finite, edges among them."""
    generator = np.random.default_rng(seed)
    size = STORAGES[kind].block_bytes
    found = generator.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in HALVES.get(kind.name, ()):
        halves = generator.integers(0, 0x7C00, (rows, blocks), np.uint16) | (
            generator.integers(0, 2, (rows, blocks), np.uint16) << 15
        )
        halves[: len(EDGES), 0] = EDGES
        found[..., at : at + 2] = halves.astype("<u2")[..., None].view(np.uint8)
    return found.reshape(rows, -1)


def numbers(weight: torch.Tensor | QuantisedWeight) -> torch.Tensor:
    return weight.dequantise() if isinstance(weight, QuantisedWeight) else weight.float()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_have_ggmls_bits(kind):
    for seed in range(4):
        blocks = random_blocks(kind, seed=seed)
        expected = torch.from_numpy(np.ascontiguousarray(gguf.dequantize(blocks, kind), np.float32))
        found = numbers(STORAGES[kind].read(blocks))
        assert found.shape == expected.shape
        bits, wanted = found.contiguous().view(torch.int32), expected.view(torch.int32)
        same = (bits == wanted) | (found.isnan() & expected.isnan())
        assert bool(same.all()), f"{kind.name}: {(~same).sum()} of {same.numel()} differ"


def test_names_and_sizes_are_ggmls():
    for kind in KINDS:
        storage = STORAGES[kind]
        assert (storage.name, (storage.block, storage.block_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
    named = {number: storage.name for number, storage in STORAGES.items()} | OTHER_STORAGES
    assert named.items() <= {kind.value: kind.name for kind in gguf.GGMLQuantizationType}.items()


def test_the_lowest_number_of_q8_0_is_kept():
    block = np.zeros((1, 34), np.uint8)
    block[0, :2], block[0, 2] = np.float16(0.5).view(np.uint16).astype("<u2").reshape(1).view(np.uint8), 0x80
    weight = STORAGES[8].read(block)
    assert isinstance(weight, QuantisedWeight)
    assert weight.values[0, 0] == -128
    assert weight.dequantise()[0, 0] == -64.0


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_whole_numbers_stay_whole(name):
    kind = gguf.GGMLQuantizationType[name]
    weight = STORAGES[kind].read(random_blocks(kind))
    assert isinstance(weight, QuantisedWeight)
    assert weight.format.name == name.lower()
    assert weight.values.dtype == torch.int8
    assert weight.scales.shape == (40, weight.values.shape[1] // (weight.format.group or 1))
    assert (weight.minima is not None) == weight.format.minima
    lowest = 0 if weight.format.minima else -weight.format.largest - 1
    assert lowest <= int(weight.values.min())
    assert int(weight.values.max()) <= weight.format.largest
