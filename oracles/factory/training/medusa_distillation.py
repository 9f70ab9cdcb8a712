"""Medusa's heads: their initial weights, their training, and the folder that their authors' code reads."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from oracles.factory.training.export import save_folder
from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.factory.training.lesson import Lesson, head_rows
from oracles.heads import MedusaNetwork, MedusaShape
from oracles.heads.medusa_files import medusa_name


def new_medusa(lesson: Lesson, num_layers: int) -> MedusaNetwork:
    """Return heads in training form that at first all have the oracle's law of the next token.

    Args:
        lesson: what they learn from; the oracle's head is copied to each of them.
        num_layers: residual blocks of each.

    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774), section 2.1.1.
    """
    oracle = lesson.oracle
    network = MedusaNetwork(MedusaShape(lesson.num_steps, num_layers, oracle.hidden_size, oracle.vocab_size))
    rows = head_rows(oracle, None)[: oracle.vocab_size]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("lm_heads."):
                parameter.copy_(rows)
            else:
                parameter.zero_()
    return network.to(oracle.device)


class MedusaDistillation(HeadDistillation):
    """Medusa's heads, which learn side by side from every position of a text.

    Args:
        lesson: what they learn from; ``layers`` is the last one, and all ids are written.
        network: of ``new_medusa``.

    Source: Cai et al. 2024 (Medusa-1, arXiv 2401.10774).
    Deviations: the paper's heads learn the text; these learn the oracle's law of it unless the loss is ``ce``.
    """

    model: MedusaNetwork

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""
        one = self.lesson
        return (
            f"{one.num_steps} heads of medusa by {one.loss}, discount {one.discount}, {len(self.model.blocks[0])} "  # type: ignore[arg-type]
            f"residual blocks, {one.reading}"
        )

    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield each head's logits from the state before the root; see ``HeadDistillation.draft``."""
        normed = self.oracle.last_norm(layers[0])
        for head, chosen in enumerate(known):
            yield self.model(head, normed[roots.row[chosen], roots.at[chosen] - 1]), None


def save_medusa(network: MedusaNetwork, name: str, folder: Path) -> None:
    """Write heads: ``config.json``, and bfloat16 tensors in the authors' names.

    Args:
        network: of ``new_medusa``.
        name: of the oracle.
        folder: made if absent; old weights in it are removed.
    """
    num_layers: int = len(network.blocks[0])  # type: ignore[arg-type]
    tensors = {medusa_name(key, num_layers): parameter.detach() for key, parameter in network.named_parameters()}
    values = {"medusa_num_heads": len(network.blocks), "medusa_num_layers": num_layers, "base_model_name_or_path": name}
    save_folder(tensors, values, folder)
