"""What a draft strategy is on a command line, options that several share, and defaults for published models."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from oracles.checkpoints.embedded_folders import heads_of
from oracles.checkpoints.placement import WeightType, can_compute
from oracles.factory import dialogues
from specdec import DraftSource, Oracle

Settings = Mapping[str, Any]
# The key of the option that ``depth`` makes.
LENGTH = "num_draft_tokens"


@dataclass(frozen=True)
class Option:
    """A command-line option of a strategy.

    Attributes:
        name: with dashes, without the leading ones.
        default: value when it is not given.
        kind: turns its text into a value.
        help: one line.
    """

    name: str
    default: Any
    kind: Callable[[str], Any]
    help: str

    @property
    def key(self) -> str:
        """Its name in the settings."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Strategy:
    """A draft strategy as the experiments run it.

    Attributes:
        name: of its arm and its script.
        options: of its own.
        build: makes the source from the settings (option key -> value; ``oracle``, ``device``, ``dtype`` of the run).
        variants: arms beside it in its own experiment: name -> the settings in which they differ.
        needs_model: what it asks of the oracle that recorded text cannot give, as the end of a sentence; "": nothing.
        asks: the key of an option that must be given unless a head for the strategy ships with the oracle; "": none.
        remembers: the key of an option with which the source keeps something of earlier runs; "": none does.
    """

    name: str
    options: tuple[Option, ...]
    build: Callable[[Settings, Oracle], DraftSource]
    variants: Mapping[str, Settings] = field(default_factory=dict)
    needs_model: str = ""
    asks: str = ""
    remembers: str = ""

    @property
    def has_length(self) -> bool:
        """Whether a command line can say how long its drafts are."""
        return any(option.key == LENGTH for option in self.options)

    def is_ready(self, arguments: Settings) -> bool:
        """Whether this command line has what it asks for; if not, it runs only if it is asked for by name."""
        given = not self.asks or arguments[f"{self.name}.{self.asks}"] is not None
        return given or self.name in heads_of(arguments["oracle"])


def depth(default: int) -> Option:
    """Return the option of how many tokens to draft."""
    return Option("num-draft-tokens", default, int, "tokens to draft per step")


TRAINED_HEAD = "DIR, a head that was trained on this oracle"


def lack_of_head(oracle: str, takes: str = TRAINED_HEAD) -> str:
    """Return what to give for an oracle that no head ships with: ``takes``, what the option takes."""
    return f"give --head {takes}: none is shipped for {oracle}"


def head_of(settings: Settings, name: str, takes: str = TRAINED_HEAD) -> str:
    """Return the head that a strategy of this name drafts with: the given one, else what ships for the oracle.

    Raises:
        ValueError: there is none; ``takes`` is said as of ``lack_of_head``.
    """
    head: str | None = settings["head"] or heads_of(settings["oracle"]).get(name)
    if head is None:
        raise ValueError(f"{name}: {lack_of_head(settings['oracle'], takes)}")
    return head


def yes_or_no(text: str) -> bool:
    """Return what yes or no says.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if text not in ("yes", "no"):
        raise ArgumentTypeError(f"expected yes or no, got {text!r}")
    return text == "yes"


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader of these names; it raises ArgumentTypeError for any other text."""

    def name(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"expected one of {', '.join(names)}, got {text!r}")
        return text

    return name


MODEL = Option("model", "code-draft", str, "draft model: embedded name, checkpoint directory or hf:DIR")
# Which model drafts, and how its weights are stored.
MODEL_OPTIONS = (
    MODEL,
    Option(
        "model-weights",
        None,
        one_of(*get_args(WeightType)),
        "weight type of the draft model's linear layers (that of --weights)",
    ),
)
TRAIN_ON = Option(
    "train-on",
    None,
    str,
    "text files or folders of shards of conversations, separated by commas (the corpus's training modules)",
)
ORDER = Option("order", 4, int, "longest n-gram")


def lookup_options(min_ngram: int) -> tuple[Option, Option]:
    """Return the options of prompt lookup's suffixes."""
    return (
        Option("max-ngram", 3, int, "longest suffix to look up"),
        Option("min-ngram", min_ngram, int, "shortest suffix that counts as a match"),
    )


_OWN_TEXT = str(Path(dialogues.__file__).parent / "smollm2")
_SMOL_DRAFT: Settings = {"model": "smol-draft", "model_weights": "q4_0-int8"}
# Oracle -> strategy -> key of an option -> its default. These lengths pay with products of whole numbers.
PUBLISHED_SETTINGS: Mapping[str, Mapping[str, Settings]] = {
    "code": {"early_exit": {"head": "code-exit"}},
    "smollm2": {
        "small_transformer": {**_SMOL_DRAFT, "num_draft_tokens": 3},
        "other_vocabulary": {"num_draft_tokens": 2},
        "tree": {**_SMOL_DRAFT, "shape": "paths:0.0,1"},
        "ngram": {"train_on": _OWN_TEXT, "num_draft_tokens": 2},
        "early_exit": {"head": "smol-exit", "num_draft_tokens": 1},
        "eagle3": {"head_weights": "q4_0-int8", "num_draft_tokens": 3},
        "block_drafter": {"head_weights": "int8-dynamic", "num_draft_tokens": 3},
        "quantized": {"num_draft_tokens": 2},
        "prompt_lookup": {"num_draft_tokens": 3},
        "suffix_automaton": {"num_draft_tokens": 3},
        "merged": {**_SMOL_DRAFT, "second": "small_transformer", "num_draft_tokens": 2},
        "cascade": {
            **_SMOL_DRAFT,
            "first": "suffix_automaton",
            "second": "small_transformer",
            "num_draft_tokens": 4,
        },
        "staged": {**_SMOL_DRAFT, "inner": "prompt_lookup", "num_draft_tokens": 3},
        "threshold": {**_SMOL_DRAFT, "head_weights": "q4_0-int8", "train_on": _OWN_TEXT, "num_draft_tokens": 4},
    },
}


def published_settings(strategy: str, run: Settings) -> Settings:
    """Return a strategy's defaults for the oracle of a run, without weights that the device or dtype cannot compute.

    Args:
        strategy: its name.
        run: has "oracle", "device" and "dtype".

    Raises:
        ValueError: torch knows no such device.
    """
    own, where = PUBLISHED_SETTINGS.get(run["oracle"], {}).get(strategy, {}), (run["dtype"], run["device"])
    return {key: value for key, value in own.items() if can_compute(value, *where)}


def default_of(strategy: str, option: Option, run: Settings) -> Any:
    """Return the value of an option that is not given; arguments and errors as of ``published_settings``."""
    return published_settings(strategy, run).get(option.key, option.default)
