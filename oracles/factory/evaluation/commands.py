"""The commands of ``python -m oracles.factory.evaluate``: what each measures and prints."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.loading import checkpoint_folder, load, load_tokenizer, load_trainable, num_ids
from oracles.checkpoints.tokenization import sample
from oracles.factory.arithmetic.problems import Problem, split
from oracles.factory.arithmetic.tokens import exact_answers
from oracles.factory.corpus import STDLIB, read_split
from oracles.factory.evaluation.agreement import Agreements, Logits, compare
from oracles.factory.evaluation.continuations import GREEDY, NUCLEUS, OWN_TEXT, write
from oracles.factory.evaluation.loops import loop_columns
from oracles.factory.evaluation.ngrams import ngram_bits_per_byte, ngram_logits, xz_bits_per_byte
from oracles.factory.evaluation.passages import Passage, excerpts, read_passages
from oracles.factory.training.held_out import MAX_WINDOW, bits_per_byte
from oracles.heads import ExitHead, load_exit_head
from oracles.transformer.eager import Transformer
from specdec.drafting import NGramModel
from specdec.stats import Table
from specdec.stats.report import show

SHIPPED = Path(__file__).parents[3] / "experiments" / "prompts" / "code.jsonl"
WAYS = {"greedy": GREEDY, "temperature 0.8, top-p 0.95": NUCLEUS}
# Orders of the n-gram model beside bits per byte, and of the one that the experiments draft with.
LONG_ORDER, DRAFTED_ORDER = 5, 4
# Of a prompt that is shown; a reader needs its end.
LAST_LINES = 8


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in training form.

    Attributes:
        name: as it was asked for.
        model: in float32.
        tokenizer: its own.
        num_bytes: of its weights on disk.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    num_bytes: int

    @classmethod
    def read(cls, name_or_path: str, device: torch.device | str = "cpu") -> "Checkpoint":
        """Return the embedded checkpoint of this name, or the one in this directory; ValueError if there is none."""
        files = checkpoint_folder(name_or_path).glob("*.safetensors")
        model, tokenizer = load_trainable(name_or_path, "float32", device), load_tokenizer(name_or_path)
        return cls(name_or_path, model, tokenizer, sum(path.stat().st_size for path in files))

    def columns(self) -> dict[str, str]:
        """Return name, number of parameters and size, for a row of a table."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return {"model": f"`{self.name}`", "parameters": f"{count:,}", "MB on disk": f"{self.num_bytes / 1e6:.1f}"}


def bits(args: argparse.Namespace) -> None:
    """Print the bits that oracle, drafts, an n-gram model and xz spend on a byte of the same text."""
    texts = sample(read_split(args.split), args.max_bytes)
    num_bytes, tokenizer = sum(len(text.encode()) for text in texts), load_tokenizer(args.oracle)
    rows = []
    for name in (args.oracle, *args.drafts):
        one = Checkpoint.read(name, args.device)
        rows.append(one.columns() | {"bits per byte": f"{bits_per_byte(one.model, one.tokenizer, texts):.3f}"})
    for name, value in (
        (_long_name(args), ngram_bits_per_byte(_long_ngrams(args, tokenizer), tokenizer, texts)),
        ("`xz -9e`", xz_bits_per_byte(texts)),
    ):
        rows.append(dict.fromkeys(rows[0], "-") | {"model": name, "bits per byte": f"{value:.3f}"})
    note = (
        f"On {num_bytes:,} bytes of *{args.split}* ({len(texts):,} files); the transformers in float32, in windows of "
        f"{MAX_WINDOW:,} tokens that overlap by half; xz has read no other text."
    )
    show([Table("", rows, note)])


def text(args: argparse.Namespace) -> None:
    """Print how much of what the oracle writes, and of real text, stands in loops; then the continuations asked for."""
    tokenizer, files = load_tokenizer(args.oracle), sample(read_split(args.split), args.max_bytes)
    passages = _passages(args, tokenizer, files)
    engine, prompts = load(args.oracle, device=args.device), [passage.prompt for passage in passages]
    written = {name: write(engine, prompts, way, args.tokens, args.batch_size) for name, way in WAYS.items()}
    kinds: dict[str, Sequence[Sequence[int]]] = {
        name: [continuation.new for continuation in found] for name, found in written.items()
    }
    kinds["how the prompts really go on"] = [passage.reference[: args.tokens] for passage in passages]
    kinds[f"windows of *{args.split}*"] = [
        ids[first : first + args.tokens]
        for ids in (tokenizer.encode(file).ids for file in files)
        for first in range(0, len(ids) - args.tokens + 1, args.tokens)
    ]
    note = f"`{args.oracle}` after {len(passages)} prompts, up to {args.tokens} tokens each."
    show([Table("", [{"text": name} | loop_columns(found) for name, found in kinds.items()], note)])
    for i, passage in enumerate(passages[: args.show]):
        decoded = {name: tokenizer.decode(list(found[i].new)) for name, found in written.items()}
        print(f"\n{format_section(f'{i + 1}. `{passage.name}`', tokenizer.decode(list(passage.prompt)), decoded)}")


def format_section(title: str, prompt: str, written: Mapping[str, str]) -> str:
    """Return a section with the end of a prompt and what was written after it.

    Args:
        title: of the section.
        prompt: its last lines are shown.
        written: how a text was written -> the text.
    """
    ending = "\n".join(prompt.split("\n")[-LAST_LINES:])
    parts = {"The prompt ends": ending, **written}
    return "\n\n".join([f"### {title}", *(f"{name}:\n\n{code_block(text)}" for name, text in parts.items())])


def code_block(text: str) -> str:
    """Return a block of code, its fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"


def drafts(args: argparse.Namespace) -> None:
    """Print how far draft models, exit heads and n-gram models agree with the oracle on text that it wrote."""
    oracle = Checkpoint.read(args.oracle, args.device)
    files = sample(read_split(args.split), args.max_bytes)
    prompts = [passage.prompt for passage in _passages(args, oracle.tokenizer, files)]
    candidates = _models(args, oracle) | _heads(args, oracle) | _ngrams(args, oracle.tokenizer)
    _print_agreement(args, oracle, candidates, prompts, has_loops=True)


def arithmetic(args: argparse.Namespace) -> None:
    """Print the share of held-out problems answered exactly, and how far drafts agree with the oracle."""
    problems = [Problem.of_number(int(number)) for number in split()[1]][: args.num_problems]
    oracle = Checkpoint.read(args.oracle, args.device)
    rows = []
    for one in (oracle, *(Checkpoint.read(name, args.device) for name in args.drafts)):
        exact = exact_answers(one.model, problems)
        rows.append(one.columns() | {"answered exactly": f"{exact:,}", "share": f"{exact / len(problems):.2%}"})
    show([Table("", rows, f"On {len(problems):,} held-out problems."), ""])
    if args.drafts:
        prompts = [tuple(oracle.tokenizer.encode(problem.prompt).ids) for problem in problems]
        _print_agreement(args, oracle, _models(args, oracle), prompts, has_loops=False)


def _passages(args: argparse.Namespace, tokenizer: Tokenizer, files: Sequence[str]) -> list[Passage]:
    """Return the texts to continue: a file's prompts (for *test* the shipped file's), else excerpts of the split."""
    if args.prompts is None and args.split == "dev":
        return excerpts(files, tokenizer, args.num_prompts, args.tokens)
    return read_passages(args.prompts or SHIPPED, tokenizer, args.num_prompts)


def _models(args: argparse.Namespace, oracle: Checkpoint) -> dict[str, Logits]:
    """Return the logits of draft models, by name; ValueError if one has another vocabulary."""
    models = {name: load_trainable(name, "float32", args.device) for name in args.drafts}
    size = oracle.model.vocab_size
    for name, model in models.items():
        if model.vocab_size != size:
            raise ValueError(f"{name} has {model.vocab_size} ids, and the oracle {size}: leave it out")
    return {f"`{name}`": model.forward for name, model in models.items()}


def _heads(args: argparse.Namespace, oracle: Checkpoint) -> dict[str, Logits]:
    found: dict[str, Logits] = {}
    for name in args.heads:
        head = load_exit_head(name, oracle.model)
        told = f"`{name}`, after {head.num_layers} of {oracle.model.num_layers} layers"
        found[told] = partial(head_logits, head, oracle.model)
    return found


def head_logits(head: ExitHead, oracle: Transformer, ids: Tensor) -> Tensor:
    """Return an exit head's logits ``[B, T, V]`` after every prefix of ids ``[B, T]``; the oracle is as it trains."""
    stream = oracle.streams(ids)[head.num_layers - 1]
    return head(stream.flatten(0, 1)).view(*ids.shape, -1)


def _ngrams(args: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Logits]:
    """Return two n-gram models: counts of the text that the experiments count, and of more text."""
    texts = [source.text for source in read_split("train") if source.entry.package == STDLIB]
    short = NGramModel.train(texts, num_ids(tokenizer), DRAFTED_ORDER, tokenizer)
    return {
        f"{DRAFTED_ORDER}-gram of the standard library in *train*": partial(ngram_logits, short),
        _long_name(args): partial(ngram_logits, _long_ngrams(args, tokenizer)),
    }


def _long_ngrams(args: argparse.Namespace, tokenizer: Tokenizer) -> NGramModel:
    texts = sample(read_split("train"), args.ngram_bytes)
    return NGramModel.train(texts, num_ids(tokenizer), LONG_ORDER, tokenizer)


def _long_name(args: argparse.Namespace) -> str:
    return f"{LONG_ORDER}-gram of {args.ngram_bytes / 1e6:g} MB of *train*"


def _print_agreement(
    args: argparse.Namespace,
    oracle: Checkpoint,
    candidates: Mapping[str, Logits],
    prompts: Sequence[tuple[int, ...]],
    has_loops: bool,
) -> None:
    """Print overlap on text drawn at temperature 1 and agreement on greedy text, both of the oracle's own."""
    engine = load(args.oracle, device=args.device)
    texts = [write(engine, prompts, way, args.tokens, args.batch_size) for way in (OWN_TEXT, GREEDY)]
    own, greedy = (compare(oracle.model.forward, candidates, part, oracle.model.device) for part in texts)
    note = (
        f"On what `{args.oracle}` wrote after {len(prompts):,} prompts: overlap on {_count(own, has_loops)} drawn at "
        f"temperature 1, the same likeliest id on {_count(greedy, has_loops)} of greedy text."
    )
    rows = [{"draft": name} | _columns(own[name], greedy[name], has_loops) for name in candidates]
    show([Table("", rows, note)])


def _count(found: Mapping[str, Agreements], has_loops: bool) -> str:
    """Return the number of compared tokens, in words; it is the same for every draft."""
    one = next(iter(found.values()))
    outside = f" ({one.unlooped.num_tokens:,} outside loops)" if has_loops else ""
    return f"{one.all.num_tokens:,} tokens{outside}"


def _columns(own: Agreements, greedy: Agreements, has_loops: bool) -> dict[str, float | None]:
    columns = {"overlap": own.all.mean_overlap, "same likeliest id": greedy.all.share_same}
    if not has_loops:
        return columns
    unlooped = {"overlap": own.unlooped.mean_overlap, "same likeliest id": greedy.unlooped.share_same}
    return columns | {f"{name}, loops left out": value for name, value in unlooped.items()}
