"""Models of every family and storage for the native pass, their bits and their builds."""

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import Transformer, TransformerConfig
from oracles.native import NativeTransformer, NativeUnavailable, bindings
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from tests.support.drafting.whole_drafts import as_tensors
from tests.support.models.scoring import append, random_tree
from tests.support.models.stored_weights import in_format
from tests.support.models.tiny_models import FAMILIES

STORAGES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Sizes that are multiples of nothing: heads of 20 and 6, odd widths, a vocabulary of 37.
ODD = {
    "hidden_size": 44, "intermediate_size": 51, "head_dim": 20, "num_heads": 3, "num_kv_heads": 1, "vocab_size": 37,
    "rope_dim": 6, "qk_norm": True, "mlp_bias": True, "activation": "gelu_tanh",
}  # fmt: skip
SHAPES = {**FAMILIES, "odd": ODD, "relu": {"gated": False, "activation": "relu", "head_bias": True}}


def integer_model(**changes: object) -> Transformer:
    """Return a model whose weights are multiples of 2^-12 made by integer arithmetic: no machine rounds them."""
    shape = {
        "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "max_context": 1024,
    }  # fmt: skip
    model = Transformer(TransformerConfig(**(shape | changes)))
    state = 12345
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = np.empty(parameter.numel(), dtype=np.int64)
            for i in range(len(values)):
                state = (1103515245 * state + 12345) % 2**31
                values[i] = (state >> 16) % 2048 - 1024
            wanted = torch.from_numpy(values).view(parameter.shape) / 4096
            parameter.copy_(1 + wanted if "norm" in name and name.endswith("weight") else wanted)
    return model


def digest(family: str, weights: str = "float32") -> str:
    """Return a hash of the bits of a text's logits, chunks and a tree included, by a model of integer weights."""
    model = NativeTransformer(in_format(integer_model(**SHAPES[family]), weights))
    ids = torch.arange(300) * 7 % model.vocab_size
    parents = torch.tensor([[-1, 0, 0, 1, 3, 3, 2, 6]])
    cache = model.new_cache(1, 512)
    logits = append(model, cache, 0, ids, width=77)
    tree = model.score(parents + 5, parents, torch.tensor([8]), cache, np.array([0])).logits
    return hashlib.sha256(logits.numpy().tobytes() + tree.numpy().tobytes()).hexdigest()[:16]


def use_build(lanes: int, level: str, monkeypatch: pytest.MonkeyPatch, *extra: str) -> None:
    """Run native passes by a build of so many lanes; skip the test where the CPU has no registers for 16."""
    try:
        built = bindings.functions(f"-DSPECDEC_LANES={lanes}", level, *extra)
    except NativeUnavailable:
        if lanes == 16:
            pytest.skip("this CPU has no registers of 16 floats")
        raise
    monkeypatch.setattr(bindings, "functions", lambda: built)


WIDTHS = (1, 2, 3, 4, 5, 8, 9, 17, 19)
# Heads of several groups of inputs, and embeddings that are the head.
WIDE = {"hidden_size": 96, "head_dim": 32, "intermediate_size": 72, "tie_embeddings": True}
WITH_WIDE = {**SHAPES, "wide": WIDE}


def logits_of(oracle: NativeTransformer) -> list[Tensor]:
    """Return logits: prompts by chunks, chains of every width, a batch of trees, greedy chains."""
    generator = torch.Generator().manual_seed(1)
    cache, logits = oracle.new_cache(2, 300), []
    for row, length in enumerate((270, 4)):
        logits.append(append(oracle, cache, row, torch.randint(23, (length,), generator=generator), 100))
    for width in WIDTHS:
        tokens = torch.randint(23, (1, width), generator=generator)
        logits.append(oracle.score(tokens, None, torch.tensor([width]), cache, np.array([1])).logits)
    tokens, parents = torch.randint(23, (2, 12), generator=generator), random_tree(2, 12, generator)
    scores = oracle.score(tokens, parents, torch.tensor([12, 7]), cache, np.arange(2), hidden=(0, 1))
    logits += [scores.logits, *scores.hidden]
    call = tokens[:, :2], torch.tensor([2, 1]), cache, np.arange(2), np.array([5, 3])
    return [*logits, *as_tensors(oracle.follow_ids, *call)[:2]]


def assert_bits_agree(model: NativeTransformer, plain: NativeTransformer) -> None:
    """All logits are the same bits."""
    found = logits_of(model), logits_of(plain)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def rows_and_inputs(rows: int, model: Transformer) -> tuple[Tensor, Tensor]:
    """Return rows of a stream, of whole numbers whose squares float32 adds up exactly, and what the last norm makes."""
    weight, hidden = model.model.norm.weight.detach(), model.config.hidden_size
    stream = torch.randint(-60, 61, (rows, hidden), generator=torch.Generator().manual_seed(rows)).float()
    stream *= torch.logspace(0, 1, rows, 2).round()[:, None]
    mean = (stream.numpy() ** 2).sum(axis=1, dtype=np.float64).astype(np.float32) / np.float32(hidden)
    scale = np.float32(1) / np.sqrt(mean + np.float32(model.config.norm_eps))
    return stream, stream * torch.from_numpy(scale)[:, None] * weight


def assert_alike_but_for_edges(found: Tensor, other: Tensor) -> None:
    """An input on the edge between two whole numbers may fall to either side, and moves its row a little."""
    distance = (found - other).abs().amax(dim=1)
    assert distance.quantile(0.5) < 2e-5
    clear = found.topk(2).values.diff().abs()[:, 0] > 2 * distance
    assert clear.float().mean() > 0.9
    assert torch.equal(found.argmax(dim=1)[clear], other.argmax(dim=1)[clear])


# Of heads: the type of what is stored, how it is rounded, and how far logits may be from the eager head's.
HEAD_TYPES = {
    "float32": (torch.float32, None, 1e-5),
    "bfloat16": (torch.bfloat16, None, 1e-5),
    "rounded to bfloat16": (torch.float32, "bfloat16", 1e-5),
    "int8": (torch.bfloat16, "int8", 1e-5),
    "int4": (torch.float32, "int4", 1e-5),
    "int8-dynamic": (torch.float32, "int8-dynamic", 3e-2),  # what is rounded lies on an edge now and then
}


def assert_near(found: Tensor, wanted: Tensor, error: float) -> None:
    """The same ids are written, by logits that differ by so much of the largest."""
    written = wanted.isfinite()
    assert torch.equal(found.isfinite(), written)
    assert (found - wanted)[written].abs().max() <= error * wanted[written].abs().max()


ASKED = [[1, 2, 3, 1, 2], [0], [3, 3], [2], [1, 2, 1, 2, 1, 2], [0, 1], [3], [2, 0, 1]]
SAMPLINGS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=0.2)}


def assert_plain_tokens(oracle: NativeTransformer, source: DraftSource, rule: str, batch_size: int) -> None:
    """A head's drafts write plain decoding's tokens, "greedy" or "coupled", and do not depend on the batch."""
    sampling = SAMPLINGS["greedy" if rule == "greedy" else "sampled"]
    used = "sample_and_match" if rule == "greedy" else rule
    wanted = SpeculativeDecoder(oracle, None, used).generate(ASKED, 12, sampling, seed=3).tokens
    decoder = SpeculativeDecoder(oracle, source, used)
    made, alone = (decoder.generate(ASKED, 12, sampling, seed=3, batch_size=size) for size in (batch_size, 1))
    assert made.tokens == alone.tokens == wanted
    assert made.stats.num_accepted == alone.stats.num_accepted
