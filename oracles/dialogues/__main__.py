"""Let a chat model write text for its drafts to learn on: ``python -m oracles.dialogues documents|write|shards|count``.

``documents`` downloads what half of the conversations are about. ``write`` goes on after the last whole part, until it
is stopped or has enough. ``shards`` compresses the ids of all parts, ``count`` says what they hold.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from oracles.dialogues import documents
from oracles.dialogues.cleaning import Benchmarks
from oracles.dialogues.parts import SPLITS, facts_of, read_part, write_part, write_shards
from oracles.dialogues.tasks import tasks
from oracles.dialogues.writing import SYSTEM, Turns, Writer
from oracles.loading import load, load_tokenizer

PART = 256


def main(argv: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    args = _parser().parse_args(argv)
    {"documents": _documents, "write": _write, "shards": _shards, "count": _count}[args.action](args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("action", choices=("documents", "write", "shards", "count"))
    add("--oracle", default="smollm2", help="a chat model, as oracles.load takes it (default %(default)s)")
    add("--arithmetic", default="int8", help="of its products, as oracles.load takes it (default %(default)s)")
    add("--documents", type=Path, default=Path("runs/documents"), help="gathered packages (default %(default)s)")
    add("--parts", type=Path, default=Path("runs/dialogues"), help="folder of the parts (default %(default)s)")
    add(
        "--shards", type=Path, default=Path("oracles/dialogues/smollm2"), help="of compressed ids (default %(default)s)"
    )
    add(
        "--benchmark",
        type=Path,
        action="append",
        default=[],
        help="JSONL with turns that no text may share 13 tokens with",
    )
    add("--tokens", type=int, default=8_000_000, help="of answers, enough (default %(default)s)")
    add("--batch-size", type=int, default=64, help="conversations side by side (default %(default)s)")
    add("--seed", type=int, default=1)
    add("--threads", type=int, help="CPU threads, if not torch's own number")
    return parser


def _documents(args: argparse.Namespace) -> None:
    documents.gather(args.documents)
    texts = documents.read(args.documents).texts
    print(f"{len(texts):,} texts of {sum(map(len, texts)):,} characters in {args.documents}")


def _write(args: argparse.Namespace) -> None:
    if not args.benchmark:
        raise SystemExit("--benchmark: give at least one file of questions that the text may not share")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    sources = documents.read(args.documents)
    oracle = load(args.oracle, arithmetic=args.arithmetic)
    tokenizer = load_tokenizer(args.oracle)
    asked = [turn for path in args.benchmark for line in path.open() for turn in json.loads(line)["turns"]]
    known = Benchmarks([tokenizer.encode(text).ids for text in asked])
    args.parts.mkdir(parents=True, exist_ok=True)
    with tqdm(unit="token", smoothing=0.01) as bar:
        writer = Writer(oracle, Turns.of(tokenizer, SYSTEM), known, args.batch_size, bar.update)
        done = 0
        for path in _paths(args.parts):
            for one in read_part(path):
                writer.remember(one)
                done += one.num_answered
        index = len(_paths(args.parts))
        while done < args.tokens:
            seed = (args.seed, index)
            conversations = writer.write(tasks(sources, PART, seed), seed)
            facts = {
                "seed": str(args.seed),
                "part": str(index),
                "oracle": args.oracle,
                "arithmetic": args.arithmetic,
                "system": SYSTEM,
            }
            write_part(_path(args.parts, index), conversations, facts | {"faults": json.dumps(writer.faults)})
            done += sum(one.num_answered for one in conversations)
            index += 1
            print(
                f"\npart {index}: {len(conversations)} of {PART} conversations, {done:,} tokens of answers", flush=True
            )
            writer.faults.clear()


def _shards(args: argparse.Namespace) -> None:
    written = write_shards(args.shards, (one for path in _paths(args.parts) for one in read_part(path)))
    print(f"{len(written)} shards, {sum(path.stat().st_size for path in written):,} bytes in {args.shards}")


def _count(args: argparse.Namespace) -> None:
    """Print what the parts hold, by kind and split, and why questions were not kept."""
    tokens: Counter[tuple[str, str]] = Counter()
    number: Counter[tuple[str, str]] = Counter()
    faults: Counter[str] = Counter()
    for path in _paths(args.parts):
        faults.update(json.loads(facts_of(path)["faults"]))
        for one in read_part(path):
            tokens[one.kind, one.split] += one.num_answered
            number[one.kind, one.split] += 1
    for kind in sorted({kind for kind, _ in tokens}):
        print(kind, *(f"{split}: {number[kind, split]:,} with {tokens[kind, split]:,}" for split in SPLITS), sep="; ")
    print(
        f"{sum(number.values()):,} conversations, {sum(tokens.values()):,} tokens of answers; not kept: {dict(faults)}"
    )


def _path(folder: Path, index: int) -> Path:
    return folder / f"part-{index:04}.safetensors"


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-????.safetensors"))


if __name__ == "__main__":
    main()
