"""Load the models that an experiment names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oracles
from oracles import HuggingFaceLM
from oracles.checkpoints.embedded_folders import embedded_folder
from oracles.checkpoints.gguf import PUBLISHED
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import Arithmetic

# Arguments that say where and how models compute; the oracle's are those of its drafts. ``bitwise`` and ``arithmetic``
# are none of them: what is written depends on the oracle's bits alone, and drafts may be stored otherwise.
PLACEMENT = ("device", "dtype", "backend", "weights")
# Before a folder: the model is computed by the library transformers.
HF = "hf:"

AnyModel = LoadedOracle | HuggingFaceLM
# What ``--oracle`` begins with where it names a file of texts in place of a model.
RECORDED = "recorded:"


def record_file(arguments: Mapping[str, Any]) -> Path | None:
    """Return the file of recorded texts that stands in for the oracle; None: the oracle is a model."""
    name = arguments["oracle"]
    return Path(name.removeprefix(RECORDED)) if name.startswith(RECORDED) else None


def load_model(
    name: str, options: Mapping[str, Any], bitwise: bool = False, arithmetic: Arithmetic | None = None
) -> AnyModel:
    """Return the model of this name, folder or file, placed as ``options`` say; the rest as of ``oracles.load``.

    Raises:
        ValueError: as of ``oracles.load`` or ``oracles.load_huggingface``; ``transformers`` is missing; a backend, a
            type of weights, an arithmetic or bits are asked of a model that ``transformers`` computes.
    """
    placement = {key: options[key] for key in PLACEMENT}
    if not name.startswith(HF):
        oracle: LoadedOracle = oracles.load(name, bitwise=bitwise, arithmetic=arithmetic, **placement)
        return oracle
    chosen = {"backend": options["backend"], "weights": options["weights"], "arithmetic": arithmetic}
    if asked := [f"--{key} {value}" for key, value in chosen.items() if value is not None]:
        raise ValueError(f"{' '.join(asked)}: {name} is computed by transformers, with weights as they are stored")
    if bitwise:
        raise ValueError(f"--bitwise: {name} is computed by transformers, whose bits depend on the pass")
    try:
        return oracles.load_huggingface(path_of(name), options["dtype"], options["device"])
    except ImportError as error:
        raise ValueError(f"{name}: {error}") from error


def draft_model(settings: Mapping[str, Any]) -> AnyModel:
    """Return the model that a strategy's own options name, with weights of the type that they name.

    Raises:
        ValueError: see ``load_model``.
    """
    weights = settings["model_weights"] or settings["weights"]
    return load_model(settings["model"], {**settings, "weights": weights})


def load_own(name: str, options: Mapping[str, Any]) -> LoadedOracle:
    """Return a model of ours; arguments as of ``load_model``.

    Raises:
        ValueError: the name is of a model that ``transformers`` computes; or as of ``oracles.load``.
    """
    if name.startswith(HF):
        raise ValueError(f"{name}: this needs a transformer of ours, whose shape and backend it knows; leave out {HF}")
    oracle: LoadedOracle = oracles.load(name, **{key: options[key] for key in PLACEMENT})
    return oracle


def needing_a_model(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the arguments of an experiment of that name, which measures times.

    Raises:
        SystemExit: the oracle is recorded text, which has none.
    """
    if record_file(arguments) is not None:
        raise SystemExit(f"{name}: --oracle {arguments['oracle']}: times are measured here, and recorded text has none")
    return arguments


def load_oracle(arguments: Mapping[str, Any]) -> AnyModel:
    """Return the model that a command line asks for.

    Raises:
        ValueError: it asks for recorded text, or the checkpoint is unusable.
    """
    if record_file(arguments) is not None:
        raise ValueError(f"--oracle {arguments['oracle']}: this one needs a model; use compare or a strategy's own")
    return load_model(arguments["oracle"], arguments, arguments["bitwise"], arguments["arithmetic"])


def path_of(name: str) -> Path:
    """Return where the files of a model of this name lie, if there are any."""
    bare = name.removeprefix(HF)
    if bare in PUBLISHED:
        return PUBLISHED[bare].path
    return embedded_folder(bare) or Path(bare)
