"""Load the models that an experiment names."""

from collections.abc import Mapping
from typing import Any

import oracles
from oracles.loading import LoadedOracle

# Arguments that say where and how models compute; the oracle's are those of its drafts.
PLACEMENT = ("device", "dtype", "backend", "weights")


def load_model(name: str, options: Mapping[str, Any]) -> LoadedOracle:
    """Return the model of this name or folder, placed as ``options`` say."""
    oracle: LoadedOracle = oracles.load(name, **{key: options[key] for key in PLACEMENT})
    return oracle


def load_oracle(arguments: Mapping[str, Any]) -> LoadedOracle:
    """Return the oracle that a command line asks for."""
    return load_model(arguments["oracle"], arguments)
