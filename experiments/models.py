"""Load the models that an experiment names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oracles
from oracles.loading import LoadedOracle

# Arguments that say where and how models compute; the oracle's are those of its drafts.
PLACEMENT = ("device", "dtype", "backend", "weights")
# What ``--oracle`` begins with where it names a file of texts in place of a model.
RECORDED = "recorded:"


def recorded_file(arguments: Mapping[str, Any]) -> Path | None:
    """Return the file of recorded texts that stands in for the oracle; None: the oracle is a model."""
    name = arguments["oracle"]
    return Path(name.removeprefix(RECORDED)) if name.startswith(RECORDED) else None


def load_model(name: str, options: Mapping[str, Any]) -> LoadedOracle:
    """Return the model of this name or folder, placed as ``options`` say."""
    oracle: LoadedOracle = oracles.load(name, **{key: options[key] for key in PLACEMENT})
    return oracle


def load_oracle(arguments: Mapping[str, Any]) -> LoadedOracle:
    """Return the model that a command line asks for.

    Raises:
        ValueError: it asks for recorded text, or the checkpoint is unusable.
    """
    if recorded_file(arguments) is not None:
        raise ValueError(f"--oracle {arguments['oracle']}: this one needs a model; use compare or a strategy's own")
    return load_model(arguments["oracle"], arguments)
