"""What drafts for a published model: the defaults of options where ``--oracle`` names it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.strategies.strategy import Option, Settings
from oracles.factory import dialogues

_OWN_TEXT = str(Path(dialogues.__file__).parent / "smollm2")
_SMOL_DRAFT: Settings = {"model": "smol-draft", "model_weights": "int8-dynamic"}
# Oracle -> strategy -> key of an option -> its default. Lengths pay where products are of whole numbers.
PUBLISHED_SETTINGS: Mapping[str, Mapping[str, Settings]] = {
    "smollm2": {
        "small_transformer": {**_SMOL_DRAFT, "num_draft_tokens": 2},
        "other_vocabulary": {"num_draft_tokens": 2},
        "tree": {**_SMOL_DRAFT, "shape": "paths:0.0,1"},
        "ngram": {"train_on": _OWN_TEXT, "num_draft_tokens": 2},
        "early_exit": {"head": "none", "num_draft_tokens": 1},
        "eagle3": {"head_weights": "int8-dynamic", "num_draft_tokens": 2},
        "block_drafter": {"head_weights": "int8-dynamic", "num_draft_tokens": 3},
        "quantized": {"num_draft_tokens": 2},
        "prompt_lookup": {"num_draft_tokens": 3},
        "suffix_automaton": {"num_draft_tokens": 3},
        "merged": {**_SMOL_DRAFT, "second": "model", "num_draft_tokens": 2},
        "cascade": {**_SMOL_DRAFT, "second": "model", "num_draft_tokens": 2},
        "staged": {**_SMOL_DRAFT, "inner": "prompt_lookup", "num_draft_tokens": 3},
        "threshold": {**_SMOL_DRAFT, "train_on": _OWN_TEXT, "num_draft_tokens": 4},
    }
}


def default_of(strategy: str, option: Option, oracle: str) -> Any:
    """Return the value of an option that is not given, for the oracle of that name."""
    return PUBLISHED_SETTINGS.get(oracle, {}).get(strategy, {}).get(option.key, option.default)
