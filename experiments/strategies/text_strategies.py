"""Text drafts: what followed the same tokens before, n-grams of the oracle's own Jacobi window, or an n-gram model."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import drafts
from experiments.strategies.strategy import (
    ORDER,
    TRAIN_ON,
    Option,
    Settings,
    Strategy,
    depth,
    lookup_options,
    yes_or_no,
)
from oracles.factory.corpus import load_manifest, stdlib_folder
from oracles.factory.dialogues.shards import Shards
from oracles.factory.dialogues.writing import begin_of
from specdec import DraftSource, Oracle
from specdec.drafting import NGramModel


def _strategy(name: str, source: Callable[..., DraftSource], options: tuple[Option, ...], **more: Any) -> Strategy:
    """Return the strategy of a source whose arguments are its options."""

    def build(settings: Settings, oracle: Oracle) -> DraftSource:
        return source(**{option.key: settings[option.key] for option in options})

    return Strategy(name, options, build, **more)


PROMPT_LOOKUP = _strategy(
    "prompt_lookup",
    drafts.PromptLookup,
    (
        depth(8),
        *lookup_options(min_ngram=1),
        Option("match", "last", str, "which earlier occurrence wins: last or first"),
    ),
)
SUFFIX_AUTOMATON = _strategy(
    "suffix_automaton",
    drafts.SuffixAutomaton,
    (
        depth(8),
        Option("tokens-per-match", 2.0, float, "tokens to draft for each matched token"),
        Option("min-ngram", 1, int, "shortest suffix that counts as a match"),
        Option("min-confidence", 0.0, float, "paths less likely than this get no node"),
        Option("max-nodes", None, int, "nodes of a tree (chains)"),
        Option("store-size", 0, int, "ids to keep of the outputs of earlier prompts"),
    ),
    remembers="store_size",
)
LOOKAHEAD = _strategy(
    "lookahead",
    drafts.Lookahead,
    (
        Option("window", 3, int, "columns of the lookahead branch"),
        Option("ngram", 5, int, "length of the n-grams"),
        Option("guesses", 3, int, "n-grams to verify per step"),
        Option("pool-size", 1024, int, "n-grams to keep for each request"),
        Option("from-prompt", True, yes_or_no, "the pool takes the n-grams of the text too: yes or no"),
    ),
    variants={
        "window alone": {"from_prompt": False},
        "text alone": {"window": 0},
        "empty pool": {"pool_size": 0},
    },
    needs_model="reads the oracle's logits",
)


def training_files(settings: Settings) -> tuple[Path, ...]:
    """Return the files to count: those given, or the corpus's training modules in the local standard library.

    The split is by module, so that the prompts stay held out whatever version the local library has.

    Raises:
        ValueError: none are given, and the library has none of the modules.
    """
    if settings["train_on"] is not None:
        return tuple(Path(name) for name in settings["train_on"].split(","))
    folder = stdlib_folder()
    files = [folder / entry.path for entry in load_manifest().split("train")]
    found = tuple(path for path in files if path.is_file())
    if not found:
        raise ValueError(f"no file of the corpus lies in {folder}; give texts with --train-on, or a --model")
    return found


def training_sequences(paths: Iterable[Path], tokenizer: Any) -> list[Path | list[int]]:
    """Return what some paths hold: a text file itself, or the ids of training conversations in a folder of shards.

    Raises:
        ValueError: a path is absent, or a folder without shards.
    """
    sequences: list[Path | list[int]] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} is absent; give a text file or a folder of shards with --train-on")
        if path.is_dir():
            begin = begin_of(tokenizer)
            sequences += ([*begin, *one.ids.tolist()] for one in Shards(path).split("train"))
        else:
            sequences.append(path)
    return sequences


@lru_cache(maxsize=1)
def _train(files: tuple[Path, ...], vocab_size: int, order: int, tokenizer: Any) -> NGramModel:
    """Return the model of some files; strategies that count the same files share it."""
    return NGramModel.train(training_sequences(files, tokenizer), vocab_size, order, tokenizer)


def _ngram(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    own = {"num_draft_tokens": settings["num_draft_tokens"], "sampled": settings["sampled"]}
    if settings["model"] is not None:
        return drafts.NGram.load(settings["model"], **own)
    if oracle.tokenizer is None:
        raise ValueError("ngram: the oracle has no tokenizer to train with; give a saved model with --model")
    return drafts.NGram(_train(training_files(settings), oracle.vocab_size, settings["order"], oracle.tokenizer), **own)


NGRAM = Strategy(
    "ngram",
    (
        depth(5),
        ORDER,
        Option("sampled", False, yes_or_no, "draw from the model's laws (yes) or take the likeliest id (no)"),
        TRAIN_ON,
        Option("model", None, str, "a saved model in place of training"),
    ),
    _ngram,
)
