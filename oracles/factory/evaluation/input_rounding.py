"""What it costs a model that the inputs of its linear layers are rounded to int8, by how many of them share a scale."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from oracles.factory.dialogues.dialogue_parts import Conversation
from oracles.factory.evaluation.agreement import Logits
from oracles.factory.evaluation.continuations import Continuation
from oracles.quantisation import INT8
from oracles.quantisation.quantised import expand_scales, fitting_scales, round_to
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear


def round_inputs(x: Tensor, group: int | None) -> Tensor:
    """Return inputs ``[..., in]`` as whole numbers of scales that ``group`` neighbours share; None: all of a row."""
    rows, format = x.reshape(-1, x.shape[-1]), replace(INT8, group=group)
    scales = fitting_scales(rows, "", format, check=False)
    numbers = round_to(rows, scales, format).float()
    return (numbers * expand_scales(scales, rows.shape[1], format)).view_as(x)


def logits_of_rounded_inputs(model: Transformer, group: int | None) -> Logits:
    """Return what a model in training form says if all inputs of its linear layers are rounded, those of a head too."""

    def hook(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return round_inputs(given[0], group), *given[1:]

    def logits(ids: Tensor) -> Tensor:
        layers = [part for part in model.modules() if isinstance(part, Linear)]
        handles = [layer.register_forward_pre_hook(hook) for layer in layers]
        try:
            found: Tensor = model(ids)
        finally:
            for handle in handles:
                handle.remove()
        return found

    return logits


def first_answers(conversations: Iterable[Conversation], begin: tuple[int, ...], count: int) -> list[Continuation]:
    """Return the first answers of ``count`` conversations, and as prompts ``begin`` with what stands before them."""
    found = []
    for one, _ in zip(conversations, range(count), strict=False):
        (start, stop), ids = one.answers[0], tuple(one.ids.tolist())
        found.append(Continuation((*begin, *ids[:start]), ids[start:stop]))
    return found
