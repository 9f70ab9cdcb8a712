"""EAGLE-3 heads: their config, their first weights, and their training.

They continue on their own features, from every position of a text at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oracles.factory.training.export import llama_config
from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.factory.training.head_export import begin_weights, serving
from oracles.factory.training.lesson import Lesson, ReadOut
from oracles.heads import Eagle3Network
from oracles.heads.aux_layers import aux_layers_of, usual_inputs
from oracles.heads.eagle3_config import read_eagle3
from oracles.transformer.attention import chunked_attention


def usual_outputs(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose outputs a head reads by default: EAGLE-3's usual ones if they are three.

    For an oracle of fewer than seven layers these are its first, its middle and its last layer but one.
    """
    usual = tuple(layer - 1 for layer in usual_inputs(num_layers))
    return usual if num_layers >= 7 else tuple(sorted({0, max(0, num_layers // 2 - 1), max(0, num_layers - 2)}))


def describe_eagle3(lesson: Lesson, name: str, intermediate_size: int) -> dict[str, Any]:
    """Return the ``config.json`` of a head in the format of ``speculators``, which counts inputs of layers.

    Args:
        lesson: what it learns from; its attention has the heads of the oracle's.
        name: of the oracle, as servers know it.
        intermediate_size: width of its MLP.

    Raises:
        ValueError: a loader would mistake these numbers for other layers.
    """
    oracle, inputs = lesson.oracle, [layer + 1 for layer in lesson.layers]
    rows = oracle.embedding_rows
    read = aux_layers_of(inputs, oracle.num_layers, "inputs", None, "the head's config")
    if read.outputs != lesson.layers:
        raise ValueError(f"inputs of layers {inputs} are taken for outputs by those who load a head: read other layers")
    layer = replace(
        oracle.config, num_layers=1, intermediate_size=intermediate_size, norm="rms", activation="silu", gated=True,
        vocab_size=rows, padded_vocab_size=None, draft_vocab_size=None, tie_embeddings=False,
    )  # fmt: skip
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "speculators_config": serving("eagle3", name, 4),
        "transformer_layer_config": llama_config(layer),
        "draft_vocab_size": rows if lesson.target_ids is None else lesson.num_written,
        "target_hidden_size": oracle.hidden_size,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": inputs,
    }


def new_eagle3(values: dict[str, Any], lesson: Lesson, own_head: bool, seed: int) -> Eagle3Network:
    """Return a head in training form that at first reads out the highest of the oracle's layers that it reads.

    Args:
        values: its config, from ``describe_eagle3``.
        lesson: what it learns from; the oracle lends embeddings and, unless ``own_head``, the rows of its head.
        own_head: it has rows of its own, which begin as the oracle's.
        seed: of the weights that are not taken from the oracle.

    Raises:
        ValueError: see ``begin_weights``.
    """
    shape = read_eagle3(values, "the head's config", lesson.oracle, None)
    network = Eagle3Network(shape, False, own_head, lesson.target_ids)
    begin_weights(network, lesson, seed)
    return network.to(lesson.oracle.device)


class UnrolledAttention:
    """Attend, step by step, from the same roots: to true keys up to the root, then to the root's own chain.

    The first call brings keys of true features; each later call those of the next node of every root's chain.

    Cost: O(B T^2) per head and call.
    """

    def __init__(self) -> None:
        self._true: tuple[Tensor, Tensor] | None = None
        self._own: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B, T, H * D]`` from ``[B, T, H, D]`` and ``[B, T, K, D]``; the layer's number is not used."""
        if self._true is None:
            self._true = key, value
        else:
            self._own.append((key, value))
        return chunked_attention(query, *self._true, own=tuple(self._own))


def unroll(
    network: Eagle3Network,
    embed: Callable[[Tensor], Tensor],
    layers: Sequence[Tensor],
    ids: Tensor,
    num_steps: int,
) -> Iterator[Tensor]:
    """Yield the streams ``[B, R, H]`` of each step, from each of R roots.

    Root r is the pair of token r + 1 and the true feature of position r: from it the head predicts token r + 2, as it
    does after a verify pass whose pending token is r + 1. Step j is the node j tokens later in the text: token
    r + 1 + j with the feature that step j - 1 left. Its query sees the true keys up to root r, and the unrolled keys of
    its own chain, as at decoding time.

    Args:
        network: in training form.
        embed: ids to embeddings.
        layers: the oracle's hidden states ``[B, T, D]``, one for each layer.
        ids: ``[B, T]``; there are R = T - num_steps roots, all that have a chain of this length before the last id.
        num_steps: k, at least 1.

    Guarantee: the streams are those that ``Eagle3Head`` computes at decoding time, up to rounding.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840), training-time test.
    """
    num_roots = ids.shape[1] - num_steps
    read = tuple(layer[:, :num_roots] for layer in layers)
    # Under autocast the products are narrower than the streams, and the head's own stream begins with this one.
    feature = network.combine(read).to(read[0].dtype)
    attend, roots = UnrolledAttention(), torch.arange(num_roots, device=ids.device).expand(len(ids), -1)
    for step in range(num_steps):
        rope = network.rotary.rows(roots + step, num_roots + step, feature.dtype)
        tokens = ids[:, 1 + step : 1 + step + num_roots]
        stream = network.layer(embed(tokens), feature, rope, attend)
        yield stream
        feature = network.norm(stream) if network.norm_output else stream


class Eagle3Distillation(HeadDistillation):
    """An EAGLE-3 head that learns by training-time test: see ``unroll``.

    Args:
        lesson: what it learns from.
        network: of ``new_eagle3``.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    model: Eagle3Network

    def __init__(self, lesson: Lesson, network: Eagle3Network) -> None:
        super().__init__(lesson, network)
        self._written = ReadOut(lesson, network.lm_head)

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""
        one = self.lesson
        return (
            f"eagle3 head by {one.loss}, {one.num_steps} steps, discount {one.discount}, layers {one.layers}, "
            f"{one.num_written} ids, {self._written.whose} head, {one.reading}"
        )

    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield the logits of each unrolled step; see ``HeadDistillation.draft``."""
        streams = unroll(self.model, self.oracle.embed, layers, inputs, self.num_steps)
        for stream, chosen in zip(streams, known, strict=True):
            yield self._written(self.model.norm(stream.flatten(0, 1)[chosen])), None
