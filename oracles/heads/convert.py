"""Write the pickled weights of a head, ``*.bin`` or ``*.pt``, as safetensors beside them.

``python -m oracles.heads.convert FOLDER`` reads only tensors: ``torch.load(weights_only=True)`` runs no code of the
file. Nothing else is changed, and nothing is overwritten.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from oracles.checkpoints.weights import PICKLES, SINGLE, pickled_weights
from specdec.system import write_whole


def convert(folder: Path) -> Path:
    """Return the safetensors file, after writing the tensors of a folder's pickles to it.

    Args:
        folder: with one or several files ``*.bin``, ``*.pt``, ``*.pth``, ``*.ckpt`` or ``*.pkl`` of tensors by name;
            a trainer's other files, such as ``optimizer.pt``, are left out.

    Raises:
        ValueError: there are no such files, there is a ``model.safetensors`` already, a file holds anything but tensors
            by name, or two files hold the same name. Nothing is written then.

    Cost: memory of all tensors, three times.
    """
    target = folder / SINGLE
    if target.exists():
        raise ValueError(f"{target} is there already")
    files = pickled_weights(folder)
    if not files:
        raise ValueError(f"{folder} holds no {', '.join(PICKLES)}")
    tensors: dict[str, Tensor] = {}
    for path in files:
        found = _read(path)
        if twice := sorted(tensors.keys() & found.keys()):
            raise ValueError(f"{path}: tensor {twice[0]!r} stands in another file of {folder} too")
        tensors |= found
    # Safetensors refuses tensors that share memory, so each gets memory of its own.
    write_whole(target, save({name: value.contiguous().clone() for name, value in tensors.items()}, {"format": "pt"}))
    return target


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickle by name."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickles fail in many ways
        raise ValueError(f"{path} cannot be read as tensors alone: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} holds a {type(found).__name__}, not tensors by name")
    return {str(name): value for name, value in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Convert a folder's pickles, and print the path of the safetensors."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the head, with its config.json")
    args = parser.parse_args(argv)
    with refusing("oracles.heads.convert"):
        print(convert(args.folder))


if __name__ == "__main__":
    as_program(main)
