"""The recipes of the embedded language models: shape, schedule, rates and windows under one name."""

from dataclasses import dataclass

from oracles.checkpoints.tokenization import VOCAB_SIZE
from oracles.factory.training.windows import WindowPlan
from oracles.transformer.config import TransformerConfig


@dataclass(frozen=True)
class Recipe:
    """How one model is trained, whatever it reads.

    Args:
        config: shape of the model.
        num_steps: length of the run; the rates fall to zero at its end.
        matrix_rate: peak learning rate of the hidden matrices (Muon, scaled to the root mean square of AdamW).
        other_rate: peak learning rate of embeddings, norms and biases (AdamW).
        warmup_steps: steps of linear rise.
        decay_share: last share of the run, over which the rates fall linearly to zero.
        weight_decay: of the hidden matrices.
        max_grad_norm: gradients are clipped to this norm.
    """

    config: TransformerConfig
    num_steps: int
    matrix_rate: float = 4e-3
    other_rate: float = 4e-3
    warmup_steps: int = 30
    decay_share: float = 0.4
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    @property
    def first_decay(self) -> int:
        """Return the first step whose rates are below their peaks; until then a run can be prolonged."""
        return round(self.num_steps * (1 - self.decay_share))

    def rate_factor(self, step: int) -> float:
        """Return the share of the peak rates at ``step``: a rise, a plateau, a fall that ends above zero."""
        rise = (step + 1) / self.warmup_steps
        fall = (self.num_steps - step) / max(1, self.num_steps - self.first_decay)
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


@dataclass(frozen=True)
class LanguageRecipe:
    """A recipe, and the windows of text that it reads."""

    recipe: Recipe
    windows: WindowPlan


RECIPES = {
    "code": LanguageRecipe(
        Recipe(_llama(384, 6, 6, 2, 1024, 2048), num_steps=2500, matrix_rate=6e-3, other_rate=6e-3),
        WindowPlan(8192, 512, 2048),
    ),
    "code-draft": LanguageRecipe(
        Recipe(_llama(128, 2, 4, 2, 448, 2048), num_steps=1250, matrix_rate=8e-3, other_rate=8e-3),
        WindowPlan(8192, 512, 2048),
    ),
    "code-draft-tiny": LanguageRecipe(
        Recipe(_llama(64, 2, 2, 1, 192, 2048), num_steps=1250, matrix_rate=1e-2, other_rate=1e-2),
        WindowPlan(8192, 512, 2048),
    ),
    "tiny": LanguageRecipe(Recipe(_llama(32, 2, 4, 2, 64, 64), num_steps=6, warmup_steps=2), WindowPlan(128, 32, 64)),
}
