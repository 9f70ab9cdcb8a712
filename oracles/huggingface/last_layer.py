"""The output of a model's last layer, which ``transformers`` returns normed only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def find_last_layer(model: Any, num_layers: int) -> nn.Module | None:
    """Return the last of a model's layers: of the first list of so many modules in its decoder; None: there is none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = (part for part in decoder.modules() if isinstance(part, nn.ModuleList) and len(part) == num_layers)
    found = next(lists, None)
    return None if found is None else found[-1]


@contextmanager
def watch_layer(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Give a list that holds, after a forward, the streams before and after a layer."""
    seen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        before = args[0] if args else options["hidden_states"]
        seen[:] = [before, output if isinstance(output, Tensor) else output[0]]

    handle = layer.register_forward_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
