"""The registry of draft strategies: a new one is a builder, its options, and one line in ``STRATEGIES``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drafts
import oracles
from oracles.corpus import load_manifest, stdlib_folder
from specdec import Calibration, DraftSource, Oracle, SamplingParams, Threshold, calibrate
from specdec.draft_length import LengthPolicy

Settings = Mapping[str, Any]


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
        build: makes the source from the settings (option key -> value; ``device`` and ``dtype`` as for the oracle).
    """

    name: str
    options: tuple[Option, ...]
    build: Callable[[Settings, Oracle], DraftSource]


def _small_transformer(settings: Settings, oracle: Oracle) -> DraftSource:
    model = oracles.load(settings["model"], dtype=settings["dtype"], device=settings["device"])
    return drafts.SmallTransformer(model, num_draft_tokens=settings["num_draft_tokens"])


def _training_files(settings: Settings) -> list[Path]:
    """Return the files to count: those given, or the corpus's training modules in the local standard library.

    The split is by module, so that the prompts stay held out whatever version the local library has.
    """
    if settings["train_on"] is not None:
        return [Path(name) for name in settings["train_on"].split(",")]
    files = [stdlib_folder() / entry.path for entry in load_manifest().split("train")]
    found = [path for path in files if path.is_file()]
    if not found:
        raise ValueError(f"no file of the corpus lies in {stdlib_folder()}; give texts with --train-on, or a --model")
    return found


def _ngram(settings: Settings, oracle: Oracle) -> DraftSource:
    own = {"num_draft_tokens": settings["num_draft_tokens"], "sampled": settings["sampled"]}
    if settings["model"] is not None:
        return drafts.NGram.load(settings["model"], **own)
    if oracle.tokenizer is None:
        raise ValueError("ngram: the oracle has no tokenizer to train with; give a saved model with --model")
    files, order = _training_files(settings), settings["order"]
    return drafts.NGram.train(files, oracle.vocab_size, order=order, tokenizer=oracle.tokenizer, **own)


def calibration(settings: Settings, oracle: Oracle, make_source: Callable[[LengthPolicy], DraftSource]) -> Calibration:
    """Return what drafted tokens are worth and cost on this machine, on excerpts of the files to train on.

    The options it reads are ``CALIBRATING``; measured at batch 1, with the sampling of the run.
    """
    texts = [path.read_text(encoding="utf-8") for path in _training_files(settings)]
    step = max(len(texts) // settings["calibrate_prompts"], 1)
    # From the middle of a file: heads are licences and imports.
    prompts = [text[len(text) // 2 :][:600] for text in texts[::step]][: settings["calibrate_prompts"]]
    sampling = SamplingParams(temperature=settings["temperature"], top_p=settings["top_p"])
    rule = "coupled" if sampling.temperature > 0 else "standard"
    return calibrate(oracle, make_source, prompts, max_new_tokens=48, sampling=sampling, rule=rule)


def _threshold(settings: Settings, oracle: Oracle) -> DraftSource:
    model = oracles.load(settings["model"], dtype=settings["dtype"], device=settings["device"])

    def make_source(length: LengthPolicy) -> DraftSource:
        return drafts.SmallTransformer(model, length=length)

    measured = calibration(settings, oracle, make_source)
    return make_source(Threshold(measured, max_draft_tokens=settings["num_draft_tokens"]))


def _prompt_lookup(settings: Settings, oracle: Oracle) -> DraftSource:
    names = ("num_draft_tokens", "max_ngram", "min_ngram", "match")
    return drafts.PromptLookup(**{name: settings[name] for name in names})


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"expected yes or no, got {text!r}")
    return text == "yes"


def _depth(default: int) -> Option:
    return Option("num-draft-tokens", default, int, "tokens to draft per step")


_MODEL = Option("model", "code-draft", str, "draft model: embedded name or checkpoint directory")
CALIBRATING = (
    Option("train-on", None, str, "text files to calibrate on, separated by commas (the corpus's training modules)"),
    Option("calibrate-prompts", 12, int, "excerpts of them that are decoded for the calibration"),
)

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "small_transformer",
            (_depth(4), _MODEL),
            _small_transformer,
        ),
        Strategy(
            "ngram",
            (
                _depth(5),
                Option("order", 4, int, "longest n-gram"),
                Option("sampled", False, _yes_or_no, "draw from the model's laws (yes) or take the likeliest id (no)"),
                Option("train-on", None, str, "text files, separated by commas (the corpus's training modules)"),
                Option("model", None, str, "a saved model in place of training"),
            ),
            _ngram,
        ),
        Strategy(
            "prompt_lookup",
            (
                _depth(8),
                Option("max-ngram", 3, int, "longest suffix that is looked for"),
                Option("min-ngram", 1, int, "shortest suffix that counts as a match"),
                Option("match", "last", str, "which earlier occurrence wins: last or first"),
            ),
            _prompt_lookup,
        ),
        Strategy("threshold", (_depth(16), _MODEL, *CALIBRATING), _threshold),
    )
}
