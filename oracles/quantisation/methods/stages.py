"""Which linear layers of a block read the same inputs, and which layer writes these inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.transformer.blocks import Block, Norm
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear


@dataclass(frozen=True, eq=False)
class Stage:
    """Linear layers that read the same inputs ``[..., in]``.

    Args:
        layers: by their names in the model; the first one's name identifies the inputs.
        writer: the norm or linear layer whose channels the inputs are, up to steps that preserve a positive factor of a
            channel: averages over positions, a product with a gate, a ReLU. None if another function comes between.
        after_norm: whether the writer is a norm.
        copies: number of successive stretches of ``width`` inputs that read one stretch of channels, as query heads
            share the values of one head.
        width: of a stretch; None: all inputs.
    """

    layers: dict[str, Linear]
    writer: Norm | Linear | None
    after_norm: bool = False
    copies: int = 1
    width: int | None = None

    @property
    def name(self) -> str:
        """The name of the inputs, for errors."""
        return next(iter(self.layers))

    def to_channels(self, of_inputs: Tensor) -> Tensor:
        """Return ``[channels]`` from ``[in]``: for each channel the mean over the inputs that read it."""
        stretches = of_inputs.view(-1, self.copies, self.width or len(of_inputs))
        return stretches.mean(1).flatten()

    def to_inputs(self, of_channels: Tensor) -> Tensor:
        """Return ``[in]`` from ``[channels]``: for each input its channel's value."""
        stretches = of_channels.view(-1, 1, self.width or len(of_channels))
        return stretches.expand(-1, self.copies, -1).flatten()


def block_of(model: Transformer, number: int) -> Block:
    """Return a block by its number."""
    block: Block = model.model.layers[number]  # type: ignore[assignment]
    return block


def stages_of(model: Transformer, number: int) -> tuple[Stage, ...]:
    """Return the stages of an unpacked block in the order of the pass; they hold all its linear layers."""
    config, block = model.config, block_of(model, number)
    attention, mlp = block.self_attn, block.mlp

    def layers_of(part: str, *names: str) -> dict[str, Linear]:
        found = {name: getattr(getattr(block, part), name) for name in names}
        return {f"model.layers.{number}.{part}.{name}": layer for name, layer in found.items() if layer is not None}

    passes_scales = config.gated or config.activation == "relu"
    copies = config.num_heads // config.kv_heads
    return (
        Stage(layers_of("self_attn", "q_proj", "k_proj", "v_proj"), block.input_layernorm, after_norm=True),
        Stage(layers_of("self_attn", "o_proj"), attention.v_proj, copies=copies, width=config.head_size),
        Stage(layers_of("mlp", "gate_proj", "up_proj"), block.post_attention_layernorm, after_norm=True),
        Stage(layers_of("mlp", "down_proj"), mlp.up_proj if passes_scales else None),
    )


@torch.no_grad()
def fold(stage: Stage, scales: Tensor) -> None:
    """Divide the output of a stage's writer by scales, and multiply the weights that read it, in place.

    X W^T = (X / s) (W s)^T. The division goes into the weight and bias of a norm, or into the rows and the bias of a
    linear layer, so that all weights stay ordinary ones.

    Args:
        stage: with a writer.
        scales: ``[channels]`` of the writer, finite and positive.

    Raises:
        ValueError: the stage has no writer, or scales are of another length, not finite or not positive.

    Guarantee: the model's outputs stay the same, up to rounding.

    Source: Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438, section 4, equation 3); Lin et al. 2023 (AWQ, arXiv
        2306.00978, section 3.2), whose code also folds into value and up projections.
    Deviations: query heads that share values share scales; AWQ's code leaves such output projections alone. Inputs
        after a nonlinear activation are left alone; AWQ's code adds a layer that divides them.
    """
    writer = stage.writer
    if writer is None or writer.weight is None:
        raise ValueError(f"{stage.name}: scales of its inputs cannot be folded into what comes before it")
    usable = scales.shape == writer.weight.shape[:1] and bool((scales.isfinite() & (scales > 0)).all())
    if not usable:
        need = f"give {len(writer.weight)} finite positive ones"
        raise ValueError(f"{stage.name}: scales {list(scales.shape)} cannot be folded: {need}")
    writer.weight.div_(scales if stage.after_norm else scales.unsqueeze(1))
    if writer.bias is not None:
        writer.bias.div_(scales)
    for layer in stage.layers.values():
        assert layer.weight is not None, "a stage that is folded has plain weights"
        layer.weight.mul_(stage.to_inputs(scales))
