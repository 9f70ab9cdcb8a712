"""Make the shipped prompts from the test split of the corpus: ``python -m experiments.prompts.make_code``.

Three kinds are interleaved: ``completion`` (the file up to the middle of a function), ``copy_heavy`` (a function or
class and the start of its edited copy) and ``docstring`` (the file up to an opening docstring). No prompt, its
reference included, shares ``PASSAGE_TOKENS`` tokens in a row with the training text or another prompt. Deterministic.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath

import numpy as np
from tokenizers import Tokenizer

import oracles
from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from oracles.factory.corpus import STDLIB, SourceFile, read_split
from oracles.factory.corpus.corpus_filters import parse_source
from oracles.factory.corpus.passage_index import PassageIndex, passage_hashes

OUT = Path(__file__).with_name("code.jsonl")
TOKENIZER = Path(oracles.__file__).parent / "embedded" / "code" / "tokenizer.json"
PER_KIND = 40
# For every prompt, so many are compared with the training text; those that share a passage with it go.
CANDIDATES = 6
MIN_TOKENS, MAX_TOKENS = 100, 400
# An edit keeps at least this share of the lines, or another edit or definition is taken.
MIN_KEPT = 0.75

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Prompt:
    """One row: what the model reads, and how the file (or the edit) goes on."""

    id: str
    kind: str
    module: str
    prompt: str
    reference: str


@dataclass(frozen=True)
class Definition:
    """A function or class of a file, as lines ``first``..``last`` (0-based, end excluded) of it."""

    source: SourceFile
    node: Function | ast.ClassDef
    lines: tuple[str, ...]

    @property
    def first(self) -> int:
        """Return the line of the first decorator, or of the ``def``."""
        return min([self.node.lineno, *(mark.lineno for mark in self.node.decorator_list)]) - 1

    @property
    def last(self) -> int:
        """Return the line after the body."""
        return self.node.end_lineno or self.node.lineno

    @property
    def body_start(self) -> int:
        """Return the line of the first statement after the docstring."""
        body = self.node.body
        documented = ast.get_docstring(self.node) is not None
        return (body[0].end_lineno or body[0].lineno) if documented else body[0].lineno - 1

    @property
    def text(self) -> str:
        """Return the definition's lines, dedented to column 0."""
        indent = self.node.col_offset
        return "\n".join(line[indent:] if not line[:indent].strip() else line for line in self._own_lines())

    def _own_lines(self) -> tuple[str, ...]:
        return self.lines[self.first : self.last]

    def row(self, kind: str, prompt: str, reference: str) -> Prompt:
        """Return the prompt of this definition, named by its place."""
        path = self.source.entry.path
        name = f"{kind}/{path}:{self.node.lineno}:{self.node.name}"
        return Prompt(name, kind, self.source.entry.module, prompt, reference)


def definitions(sources: Iterable[SourceFile]) -> Iterator[Definition]:
    """Yield every function and class of the files."""
    for source in sources:
        lines = tuple(source.text.split("\n"))
        for node in ast.walk(parse_source(source.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield Definition(source, node, lines)


def _context(definition: Definition, cut: int) -> str:
    """Return the file's lines before ``cut``, starting at a paragraph about 30 lines above the definition."""
    lines = definition.lines
    start = max(0, definition.first - 30)
    while start < definition.first and lines[start].strip():
        start += 1
    return "\n".join(lines[start:cut]).lstrip("\n")


def completion(definition: Definition) -> Prompt | None:
    """Return the file up to the middle of a function's body, or None if the body is short."""
    if isinstance(definition.node, ast.ClassDef) or definition.last - definition.body_start < 6:
        return None
    cut = (definition.body_start + definition.last + 1) // 2
    while not definition.lines[cut - 1].strip():
        cut += 1
    reference = "\n".join(["", *definition.lines[cut : definition.last]])
    return definition.row("completion", _context(definition, cut), reference)


def docstring(definition: Definition) -> Prompt | None:
    """Return the file up to the opening quotes of a docstring, or None if there is none of several lines."""
    opening = definition.node.body[0].lineno - 1
    text = "\n".join(definition.lines[opening : definition.body_start])
    quotes = text.find('"""') + 3
    if ast.get_docstring(definition.node) is None or quotes < 3 or len(text) < 150:
        return None
    prompt = _context(definition, opening) + "\n" + text[:quotes]
    return definition.row("docstring", prompt, text[quotes:])


def _rename(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def kept_share(edited: str, text: str) -> float:
    """Return the share of the edited lines, blank ones aside, that are in the text unchanged; 0 if none is."""
    lines = [line for line in edited.split("\n") if line.strip()]
    kept = set(text.split("\n"))
    return sum(line in kept for line in lines) / max(1, len(lines))


def _edit(definition: Definition) -> tuple[str, str]:
    """Return (instruction, edited copy) of a definition; which edit follows from its name and place."""
    node, text = definition.node, definition.text
    if isinstance(node, ast.ClassDef):
        return f"# A variant of {node.name}.", _rename(text, node.name, f"{node.name}Variant")
    names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
    edited = _rename(text, names[0], "arg") if names else text
    if names and node.lineno % 2 and kept_share(edited, text) >= MIN_KEPT:
        return f"# The same function with `{names[0]}` renamed to `arg`.", edited
    return "# The same function under another name.", text.replace(f"def {node.name}", f"def new_{node.name}", 1)


def copy_heavy(definition: Definition) -> Prompt | None:
    """Return a definition, an instruction to edit it and the edited copy's first lines.

    None if the definition is short, or if the edit changes too much of the lines that follow.
    """
    if definition.last - definition.first < 14:
        return None
    instruction, edited = _edit(definition)
    shown = definition.node.body[0].lineno - definition.first
    lines = edited.split("\n")
    prompt = "\n".join([definition.text, "", "", instruction, *lines[:shown]])
    reference = "\n".join(["", *lines[shown:]])
    return definition.row("copy_heavy", prompt, reference) if kept_share(reference, prompt) >= MIN_KEPT else None


KINDS: dict[str, Callable[[Definition], Prompt | None]] = {
    "completion": completion,
    "copy_heavy": copy_heavy,
    "docstring": docstring,
}


Found = tuple[Definition, Prompt]


def _interleave_packages(found: Iterable[Found]) -> list[Prompt]:
    """Return the prompts, taken in turn from every package, and within a package from every module.

    The prompts of a module are ordered by the hashes of their ids.
    """
    packages: dict[str, dict[tuple[str, ...], list[Prompt]]] = {}
    for definition, prompt in sorted(found, key=lambda pair: hashlib.sha256(pair[1].id.encode()).digest()):
        entry = definition.source.entry
        module = PurePosixPath(entry.path).parts[: 1 if entry.package == STDLIB else 2]
        packages.setdefault(entry.package, {}).setdefault(module, []).append(prompt)
    return _interleave(_interleave(modules.values()) for modules in packages.values())


def _interleave(groups: Iterable[Iterable[Prompt]]) -> list[Prompt]:
    return [prompt for turn in zip_longest(*groups) for prompt in turn if prompt is not None]


def _fitting(found: Iterable[Found], tokenizer: Tokenizer) -> list[Found]:
    """Return the prompts of ``MIN_TOKENS`` to ``MAX_TOKENS`` tokens."""
    found = list(found)
    encoded = tokenizer.encode_batch([prompt.prompt for _, prompt in found])
    lengths = [len(encoding.ids) for encoding in encoded]
    return [pair for pair, length in zip(found, lengths, strict=True) if MIN_TOKENS <= length <= MAX_TOKENS]


def candidates(sources: Iterable[SourceFile], tokenizer: Tokenizer, count: int) -> dict[str, list[Prompt]]:
    """Return up to ``count`` prompts of every kind, the ones to prefer first.

    Args:
        sources: the files of the test split.
        tokenizer: of the model that will read the prompts; it measures their lengths.
        count: number of prompts of a kind.
    """
    found = list(definitions(sources))
    kinds = {}
    for kind, make in KINDS.items():
        made = ((definition, make(definition)) for definition in found)
        fitting = _fitting([(definition, prompt) for definition, prompt in made if prompt], tokenizer)
        kinds[kind] = _interleave_packages(fitting)[:count]
    return kinds


def _token_ids(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = tokenizer.encode(prompt.prompt + prompt.reference).ids
    return ids


def drop_shared(prompts: list[Prompt], tokenizer: Tokenizer, train: Iterable[str]) -> list[Prompt]:
    """Return the prompts that share no passage with the training texts."""
    index = PassageIndex([_token_ids(prompt, tokenizer) for prompt in prompts])
    shared = index.find_overlaps(tokenizer.encode(text).ids for text in train)
    return [prompt for place, prompt in enumerate(prompts) if place not in shared]


class Distinct:
    """The passages of the prompts chosen so far; a prompt that shares one of them is rejected."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with no prompt."""
        self._tokenizer = tokenizer
        self._seen = np.zeros(0, dtype=np.uint64)

    def choose(self, prompts: Iterable[Prompt], count: int | None = None) -> list[Prompt]:
        """Return the first ``count`` prompts (None: all) that share no passage with one chosen before."""
        return list(islice(filter(self._is_new, prompts), count))

    def _is_new(self, prompt: Prompt) -> bool:
        hashes = passage_hashes(_token_ids(prompt, self._tokenizer))
        if np.isin(hashes, self._seen).any():
            return False
        self._seen = np.concatenate([self._seen, hashes])
        return True


def make_prompts(
    sources: Iterable[SourceFile], tokenizer: Tokenizer, train: Iterable[str], per_kind: int = PER_KIND
) -> list[Prompt]:
    """Return ``per_kind`` prompts of every kind, kinds in turn.

    Args:
        sources: the files of the test split.
        tokenizer: of the model that will read the prompts; it measures their lengths and the passages they share.
        train: the training texts.
        per_kind: number of prompts of a kind.

    Raises:
        ValueError: too few prompts of a kind are left.
    """
    kinds = candidates(sources, tokenizer, CANDIDATES * per_kind)
    kept = drop_shared([prompt for prompts in kinds.values() for prompt in prompts], tokenizer, train)
    distinct = Distinct(tokenizer)
    chosen = [distinct.choose((prompt for prompt in kept if prompt.kind == kind), per_kind) for kind in kinds]
    if min(map(len, chosen)) < per_kind:
        raise ValueError(f"too few prompts are left: {dict(zip(kinds, map(len, chosen), strict=True))}")
    return [prompt for group in zip(*chosen, strict=True) for prompt in group]


def main(argv: Sequence[str] | None = None) -> None:
    """Write the prompts as JSON lines."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="file to write (the shipped one)")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="tokenizer.json of the model that reads them")
    parser.add_argument("--per-kind", type=positive, default=PER_KIND, help="number of prompts of a kind")
    args = parser.parse_args(argv)
    train = (source.text for source in read_split("train"))
    prompts = make_prompts(read_split("test"), Tokenizer.from_file(str(args.tokenizer)), train, args.per_kind)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts), encoding="utf-8")
    print(f"{len(prompts)} prompts in {args.out}")


if __name__ == "__main__":
    as_program(main)
