"""Let a chat model write text for its drafts to learn on: ``python -m oracles.factory.dialogues ACTION``.

``documents`` downloads the texts that half of the conversations are about. ``write`` goes on after the last whole part
until it is stopped or has enough. ``shards`` compresses, for the repository, the ids of parts that are in no shard yet.
``count`` says what the parts hold.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from exactspec.ending import as_program
from exactspec.parser import Parser, natural, positive, refusing
from oracles.checkpoints.loading import load, load_tokenizer
from oracles.checkpoints.placement import Arithmetic
from oracles.factory.corpus.passage_index import PassageIndex
from oracles.factory.dialogues import documents
from oracles.factory.dialogues.dialogue_parts import SPLITS, facts_of, read_part, write_part
from oracles.factory.dialogues.dialogue_tasks import tasks
from oracles.factory.dialogues.shards import Shards
from oracles.factory.dialogues.writing import SYSTEM, TurnMarks, Writer
from oracles.factory.training.training_arguments import add_threads, take_threads
from specdec.prompts import read_file

# A conversation that shares this many tokens in a row with a benchmark is unfit for training.
OVERLAP = 13
# Facts that folders of earlier versions do not state; what their texts were kept away from is unknown.
_USUAL = {"device": "cpu", "dtype": "as stored"}
BENCHMARK = "benchmark"


def main(argv: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    args = _parser().parse_args(argv)
    with refusing("python -m oracles.factory.dialogues"):
        _ACTIONS[args.action](args)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS))
    add("--oracle", default="smollm2", help="a chat model, as oracles.load takes it (default %(default)s)")
    add(
        "--arithmetic",
        choices=get_args(Arithmetic),
        help="arithmetic of its products, as oracles.load takes it (int8 on a CPU)",
    )
    add("--device", default="cpu", help="where it writes (default %(default)s)")
    add(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of its arithmetic, as oracles.load takes it (the file's own on CUDA)",
    )
    add(
        "--documents",
        type=Path,
        default=Path("runs/documents"),
        help="folder of gathered packages (default %(default)s)",
    )
    add("--parts", type=Path, default=Path("runs/dialogues"), help="folder of the parts (default %(default)s)")
    add(
        "--shards",
        type=Path,
        default=Path("oracles/factory/dialogues/smollm2"),
        help="folder of compressed ids (default %(default)s)",
    )
    add(
        "--benchmark",
        type=Path,
        action="append",
        default=[],
        help="JSONL with turns that no text may share 13 tokens with",
    )
    add("--tokens", type=positive, default=8_000_000, help="tokens of answers that are enough (default %(default)s)")
    add("--batch-size", type=positive, default=64, help="conversations side by side (default %(default)s)")
    add("--part-size", type=positive, default=256, help="most conversations of a part (default %(default)s)")
    add("--seed", type=natural, default=1, help="seed of the draws (default %(default)s)")
    add_threads(parser)
    return parser


def _documents(args: argparse.Namespace) -> None:
    documents.gather(args.documents)
    texts = documents.read(args.documents).texts
    print(f"{len(texts):,} texts of {sum(map(len, texts)):,} characters in {args.documents}")


def _write(args: argparse.Namespace) -> None:
    if not args.benchmark:
        raise ValueError("--benchmark: give at least one file of questions that the text may not share")
    asked, sources = [turn for path in args.benchmark for turn in turns_in(path)], documents.read(args.documents)
    facts, shards = _facts(args) | {BENCHMARK: name_of(asked)}, Shards(args.shards)
    args.parts.mkdir(parents=True, exist_ok=True)
    check_facts(_paths(args.parts), facts, shards)
    oracle = load(args.oracle, args.dtype, args.device, arithmetic=args.arithmetic)
    tokenizer = load_tokenizer(args.oracle)
    known = PassageIndex([tokenizer.encode(text).ids for text in asked], OVERLAP)
    with tqdm(unit="token", smoothing=0.01) as bar:
        writer = Writer(oracle, TurnMarks.of(tokenizer, SYSTEM), known, args.batch_size, bar.update)
        done, further = 0, _further_paths(args.parts, shards)
        for one in chain(shards, chain.from_iterable(map(read_part, further))):
            writer.remember(one)
            done += one.num_answered
        index = shards.num_parts + len(further)
        while done < args.tokens:
            seed = (args.seed, index)
            conversations = writer.write(tasks(sources, args.part_size, seed), seed)
            faults = {"part": str(index), "faults": json.dumps(writer.faults)}
            write_part(_path(args.parts, index), conversations, facts | faults)
            done += sum(one.num_answered for one in conversations)
            index += 1
            print(
                f"\npart {index}: {len(conversations)} of {args.part_size} conversations, {done:,} tokens of answers",
                flush=True,
            )
            writer.faults.clear()


def _facts(args: argparse.Namespace) -> dict[str, str]:
    """Set the number of threads, and return what all parts of a folder must share."""
    take_threads(args)
    if args.arithmetic is None and args.device == "cpu":
        args.arithmetic = "int8"
    numbers = {name: getattr(args, name) or _USUAL[name] for name in _USUAL}
    return {
        "seed": str(args.seed),
        "oracle": args.oracle,
        "arithmetic": args.arithmetic or "float32",
        "system": SYSTEM,
    } | numbers


def check_facts(paths: Sequence[Path], facts: dict[str, str], shards: Shards) -> None:
    """Refuse to go on in a folder with a gap, or with parts or shards that were made differently.

    stderr says which of them do not tell their benchmark, if that is asked for.

    Raises:
        ValueError: the message names the file and what differs.
    """
    made = {shards.folder: shards.facts} if shards.num_parts else {}
    for folder, told in made.items():
        _check_alike(told, facts, folder, "--shards")
    first = min(shards.num_parts, _index(paths[0])) if paths else 0
    for index, path in enumerate(paths, first):
        if path.name != _path(path.parent, index).name:
            raise ValueError(f"{_path(path.parent, index)} is missing, and {path.name} is there: bring it back")
        made[path] = facts_of(path)
        _check_alike(made[path], facts, path, "--parts")
    if BENCHMARK in facts and (silent := [str(path) for path, told in made.items() if BENCHMARK not in told]):
        files = silent[0] + (f" and {len(silent) - 1} more" if silent[1:] else "")
        print(f"{files}: it is not known which --benchmark their texts do not overlap", file=sys.stderr)


def _check_alike(made: dict[str, str], facts: dict[str, str], path: Path, option: str) -> None:
    for name, value in facts.items():
        if (known := made.get(name, _USUAL.get(name, value if name == BENCHMARK else None))) != value:
            raise ValueError(f"{path} was made with {name} {known!r}, not {value!r}: give another {option}")


def name_of(asked: Sequence[str]) -> str:
    """Return what tells the turns of benchmarks from others, in whatever order and files they stand."""
    turns = sorted(set(asked))
    return f"{len(turns)} turns, SHA-256 {hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]}"


def turns_in(path: Path) -> list[str]:
    """Return all turns of a benchmark's file, as ``load_prompts`` reads it.

    Raises:
        ValueError: the file cannot be read, or a row has no "turns", a list of texts.
    """
    try:
        rows = read_file(path).get("turns", [None])
    except ValueError as error:
        raise ValueError(f"--benchmark: {error}") from error
    if not all(isinstance(turns, list) and all(isinstance(turn, str) for turn in turns) for turns in rows):
        raise ValueError(f'--benchmark: {path} has a row without "turns", a list of texts')
    return [turn for turns in rows for turn in turns]


def _shards(args: argparse.Namespace) -> None:
    facts, shards, paths = _facts(args), Shards(args.shards), _paths(args.parts)
    made = [shards.facts] * (shards.num_parts > 0) + [facts_of(path) for path in paths]
    told = [one[BENCHMARK] for one in made if BENCHMARK in one]
    check_facts(paths, facts | ({BENCHMARK: told[0]} if told else {}), shards)
    if told and len(told) == len(made):
        facts[BENCHMARK] = told[0]
    written = shards.append(((_index(path), read_part(path)) for path in _further_paths(args.parts, shards)), facts)
    print(f"{len(written)} shards more, {sum(path.stat().st_size for path in written):,} bytes in {args.shards}")


def _further_paths(folder: Path, shards: Shards) -> list[Path]:
    """Return the parts of a folder that no shard holds."""
    num_held = shards.num_parts
    return [path for path in _paths(folder) if _index(path) >= num_held]


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


_ACTIONS = {"documents": _documents, "write": _write, "shards": _shards, "count": _count}


def _path(folder: Path, index: int) -> Path:
    return folder / f"part-{index:04}.safetensors"


def _index(path: Path) -> int:
    return int(path.name.partition(".")[0].rpartition("-")[2])


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-????.safetensors"))


if __name__ == "__main__":
    as_program(main)
