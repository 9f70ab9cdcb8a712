"""Draft models in training: a small transformer that reads the oracle's embeddings and learns the oracle's law."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import DraftHead, ProjectedEmbedding, ProjectedHead
from oracles.transformer.eager import Transformer


def draft_shape(
    vocab_size: int, num_written: int, hidden_size: int, num_layers: int, intermediate_size: int
) -> TransformerConfig:
    """Return the shape of a draft model, whose heads have 64 dimensions and share keys by threes if they can.

    Raises:
        ValueError: the hidden size is no multiple of 64.
    """
    heads, rest = divmod(hidden_size, 64)
    if rest:
        raise ValueError(f"--hidden-size is {hidden_size}; give a multiple of 64, the size of a head")
    return TransformerConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads // 3 if heads % 3 == 0 else 1,
        intermediate_size=intermediate_size,
        max_context=8192,
        rope_theta=100000.0,
        draft_vocab_size=num_written,
    )


def new_draft(config: TransformerConfig, table: Tensor, ids: Tensor, counts: Tensor, seed: int) -> Transformer:
    """Return an untrained draft that only knows in which directions the embeddings of frequent ids differ most.

    Args:
        config: its shape.
        table: ``[V, W]`` the oracle's embeddings.
        ids: ``[R]`` rising, those that it writes.
        counts: ``[V]`` how often the text has each id.
        seed: of the other initial weights.

    Raises:
        ValueError: the draft is wider than the embeddings.
    """
    if config.hidden_size > table.shape[1]:
        raise ValueError(
            f"--hidden-size is {config.hidden_size}, and the oracle's embeddings, which the draft reads, are "
            f"{table.shape[1]} wide; give no more"
        )
    model, width = Transformer(config, seed=seed), config.hidden_size
    directions = torch.linalg.svd(table * (counts.float() + 1).sqrt().unsqueeze(1), full_matrices=False)[2][:width]
    inner = table @ directions.t()
    embedding, head = ProjectedEmbedding(table, width), ProjectedHead(table, width, ids)
    embedding.projection.weight = nn.Parameter(directions / inner.std())
    head.projection.weight = nn.Parameter(directions.t() / inner.std() * 0.02)
    model.model.embed_tokens = embedding  # type: ignore[assignment]  # it looks ids up as an nn.Embedding does
    model.lm_head = head
    return model


class DraftDistillation(HeadDistillation):
    """A draft model: it reads only ids, so its law of a token does not depend on where the draft began.

    Args:
        lesson: what it learns from; no layer's output is read.
        network: of ``new_draft``.
    """

    model: Transformer

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""
        one = self.lesson
        return f"draft model by {one.loss}, {one.num_written} ids, {one.reading}"

    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield the model's logits after each root, and after the text's own tokens that follow it.

        For arguments see ``HeadDistillation.draft``; ``layers`` are not read.
        """
        stream, head = self.model.streams(inputs)[-1], self.model.lm_head
        assert isinstance(head, DraftHead)
        for step, chosen in enumerate(known):
            row, at = roots.row[chosen], roots.at[chosen] + step
            yield head.columns(self.model.model.norm(stream[row, at])), None
