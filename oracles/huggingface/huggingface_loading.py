"""Load a checkpoint directory with ``transformers``, as an oracle."""

from pathlib import Path
from typing import Any

import torch

from oracles.checkpoints.chat_files import checkpoint_template, give_template
from oracles.checkpoints.embedded_folders import download_hint
from oracles.checkpoints.placement import check_device, checkpoint_dtype, checkpoint_place
from oracles.checkpoints.tokenizer_files import checkpoint_tokenizer
from oracles.huggingface.huggingface_model import EXTRA, HuggingFaceLM
from specdec.system import quiet_imports


def auto_models() -> Any:
    """Return ``transformers.AutoModelForCausalLM``, after importing all that makes a model, without any output.

    Raises:
        ImportError: ``transformers`` is missing; with the extra to install.
    """
    try:
        with quiet_imports():
            # Otherwise the first model would import it, with a line for every kernel that this machine cannot load.
            import transformers.quantizers  # noqa: F401
            from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(EXTRA) from error
    return AutoModelForCausalLM


def load_huggingface(
    folder: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    max_context: int | None = None,
) -> HuggingFaceLM:
    """Return an oracle of the model that ``AutoModelForCausalLM`` loads from a checkpoint directory.

    Args:
        folder: with ``config.json``, ``*.safetensors`` and, if it has one, ``tokenizer.json`` (without it prompts must
            be ids). Nothing is downloaded, and no code of the folder runs.
        dtype: of weights and arithmetic; None: float32 on the CPU, the file's own elsewhere.
        device: where the model lives; None: torch's default device.
        max_context: see ``HuggingFaceLM``.

    Raises:
        ValueError: no such folder, no such device, a checkpoint that ``transformers`` cannot load, or as in
            ``HuggingFaceLM``.
        ImportError: ``transformers`` is missing; with the extra to install.
    """
    models = auto_models()
    path, place = Path(folder), checkpoint_place(device)
    check_device(place)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json; give a Hugging Face checkpoint directory{download_hint(folder)}")
    kind = checkpoint_dtype(dtype) or (torch.float32 if place.type == "cpu" else "auto")
    try:
        model: Any = models.from_pretrained(
            path, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=kind
        )
    except Exception as error:  # the library raises many kinds
        raise ValueError(f"transformers cannot load {path}: {error}") from error
    tokenizer = checkpoint_tokenizer(path / "tokenizer.json")
    oracle = HuggingFaceLM(model.to(place).eval(), tokenizer, max_context)
    give_template(oracle, checkpoint_template(path, tokenizer))
    return oracle
