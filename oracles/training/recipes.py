"""The recipes of the embedded checkpoints: shape, schedule and rates under one name."""

from dataclasses import dataclass, field

from oracles.config import TransformerConfig
from oracles.tokenization import VOCAB_SIZE
from oracles.training.windows import WindowPlan


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is trained.

    Args:
        config: shape of the model.
        num_steps: length of the run; the rates fall to zero at its end.
        windows: shape of a step's data.
        matrix_rate: peak learning rate of the hidden matrices (Muon, scaled to the root mean square of AdamW).
        other_rate: peak learning rate of embeddings and norms (AdamW).
        warmup_steps: steps of linear rise.
        decay_share: last share of the run, over which the rates fall linearly to zero.
        weight_decay: of the hidden matrices.
        max_grad_norm: gradients are clipped to this norm.
        teacher_weight: with a teacher, the weight of KL(teacher || model) beside the cross entropy's 1 - weight.
    """

    config: TransformerConfig
    num_steps: int
    windows: WindowPlan = field(default_factory=WindowPlan)
    matrix_rate: float = 4e-3
    other_rate: float = 4e-3
    warmup_steps: int = 30
    decay_share: float = 0.5
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    teacher_weight: float = 0.9

    def rate_factor(self, step: int) -> float:
        """Return the share of the peak rates at ``step``: a trapezoid that ends above zero."""
        rise = (step + 1) / self.warmup_steps
        fall = (self.num_steps - step) / (self.num_steps * self.decay_share)
        return min(1.0, rise, fall)


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, context: int) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        intermediate_size=intermediate,
        max_context=context,
        tie_embeddings=True,
    )


RECIPES = {
    "code": Recipe(_llama(384, 6, 6, 2, 1024, 2048), num_steps=2000),
    "code-draft": Recipe(
        _llama(128, 2, 4, 2, 448, 2048),
        num_steps=700,
        windows=WindowPlan(repeat_share=1.0),
        matrix_rate=8e-3,
        other_rate=8e-3,
    ),
    "tiny": Recipe(_llama(32, 2, 4, 2, 64, 64), num_steps=6, windows=WindowPlan(128, 32, 64), warmup_steps=2),
}
