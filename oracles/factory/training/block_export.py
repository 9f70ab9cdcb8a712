"""DSpark heads before training: their config and their first weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oracles.factory.training.export import llama_config
from oracles.factory.training.head_export import begin_weights, serving
from oracles.heads import BlockNetwork, BlockShape
from oracles.heads.aux_layers import AuxLayers
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer
from specdec.contracts import BITWISE_NODES


def dspark_shape(
    oracle: Transformer,
    outputs: Sequence[int],
    *,
    num_layers: int,
    intermediate_size: int,
    block_size: int,
    markov_rank: int,
    confidence: bool,
    mask_id: int,
    num_written: int,
    own_head: bool,
) -> BlockShape:
    """Return the shape of a head: layers of Qwen3's kind with the oracle's heads.

    They have nothing that ``describe_dspark`` does not tell, such as biases, windows or stretched rotations.

    Args:
        oracle: that it drafts for.
        outputs: the layers whose outputs it reads.
        num_layers, intermediate_size: of its own layers, and the width of their MLPs.
        block_size: tokens of a block.
        markov_rank: of its Markov head.
        confidence: whether it tells confidences; they read the Markov head's embedding too.
        mask_id: the id that stands at the places of a block after its first.
        num_written: ids that it writes.
        own_head: whether it has rows of its own.

    Raises:
        ValueError: the oracle lacks a layer, or a block is longer than any drafter can run.
    """
    if not 1 <= block_size <= BITWISE_NODES:
        raise ValueError(f"--num-draft-tokens is {block_size}; blocks hold 1..{BITWISE_NODES} tokens")
    layers = AuxLayers(tuple(layer + 1 for layer in outputs), "inputs", "--layers", oracle.num_layers)
    own = oracle.config
    config = TransformerConfig(
        vocab_size=oracle.embedding_rows, hidden_size=own.hidden_size, num_layers=num_layers,
        num_heads=own.num_heads, num_kv_heads=own.kv_heads, head_dim=own.head_size,
        intermediate_size=intermediate_size, max_context=own.max_context, norm_eps=own.norm_eps,
        rope_theta=own.rope_theta, qk_norm=True,
    )  # fmt: skip
    return BlockShape(
        config, layers.outputs, block_size, mask_id, from_anchor=True, columns=num_written, markov="vanilla",
        markov_rank=markov_rank, confidence=confidence, confidence_with_markov=confidence, own_head=own_head,
    )  # fmt: skip


def describe_dspark(shape: BlockShape, name: str) -> dict[str, Any]:
    """Return the ``config.json`` of a head in the format of ``speculators``, which counts inputs of layers.

    Args:
        shape: of ``dspark_shape``.
        name: of the oracle, as servers know it.
    """
    layers = llama_config(shape.config) | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    del layers["mlp_bias"]
    return {
        "architectures": ["DSparkDraftModel"],
        "model_type": "speculators",
        "speculators_model_type": "dspark",
        "speculators_config": serving("dspark", name, shape.block_size),
        "transformer_layer_config": layers,
        "draft_vocab_size": shape.columns,
        "block_size": shape.block_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in shape.layers],
        "mask_token_id": shape.mask_id,
        "sliding_window_non_causal": False,
        "sample_from_anchor": True,
        "markov_rank": shape.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": shape.confidence,
        "confidence_head_with_markov": shape.confidence_with_markov,
    }


def new_dspark(shape: BlockShape, oracle: Transformer, target_ids: Tensor | None, seed: int) -> BlockNetwork:
    """Return a head in training form whose context begins as the highest layer that it reads, and sure of nothing.

    Args:
        shape: of ``dspark_shape``.
        oracle: lends embeddings and, unless the shape has its own head, the rows of its head.
        target_ids: ``[R]`` rising, what it writes; None: all ids.
        seed: of the weights that nothing else gives.
    """
    network = BlockNetwork(shape, oracle.hidden_size)
    begin_weights(network, oracle, target_ids, seed)
    with torch.no_grad():
        if network.markov_head is not None:
            for parameter in network.markov_head.markov_w2.parameters():
                parameter.zero_()
        if network.confidence_head is not None:
            for parameter in network.confidence_head.parameters():
                parameter.zero_()
    return network.to(oracle.device)
