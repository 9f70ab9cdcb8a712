"""Make the shipped prompts from held-out modules: ``python -m experiments.make_prompts``.

Three kinds, interleaved: ``completion`` (the file up to the middle of a function), ``copy_heavy`` (a function or class
and the start of its edited copy) and ``docstring`` (the file up to an opening docstring). Deterministic.
"""

import argparse
import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

import oracles
from oracles.corpus import SourceFile, read_split

OUT = Path(__file__).parent / "prompts" / "code.jsonl"
TOKENIZER = Path(oracles.__file__).parent / "embedded" / "code" / "tokenizer.json"
PER_KIND = 40
MIN_TOKENS, MAX_TOKENS = 100, 400
# An edit keeps at least this share of the lines, or another edit is taken.
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
    """A function or class of a held-out file, as lines ``first``..``last`` (0-based, end excluded) of it."""

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
        lines = tuple(source.text.splitlines())
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield Definition(source, node, lines)


def _context(definition: Definition, cut: int, num_lines: int = 30) -> str:
    """Return the file's lines before ``cut``, starting at a paragraph about ``num_lines`` above the definition."""
    lines = definition.lines
    start = max(0, definition.first - num_lines)
    while start < definition.first and lines[start].strip():
        start += 1
    return "\n".join(lines[start:cut]).lstrip("\n")


def completion(definition: Definition) -> Prompt | None:
    """Return the file up to the middle of a function's body, or None where the body is short."""
    if isinstance(definition.node, ast.ClassDef) or definition.last - definition.body_start < 6:
        return None
    cut = (definition.body_start + definition.last + 1) // 2
    while not definition.lines[cut - 1].strip():
        cut += 1
    reference = "\n".join(["", *definition.lines[cut : definition.last]])
    return definition.row("completion", _context(definition, cut), reference)


def docstring(definition: Definition) -> Prompt | None:
    """Return the file up to the opening quotes of a docstring, or None where there is none of several lines."""
    opening = definition.node.body[0].lineno - 1
    text = "\n".join(definition.lines[opening : definition.body_start])
    quotes = text.find('"""') + 3
    if ast.get_docstring(definition.node) is None or quotes < 3 or len(text) < 150:
        return None
    prompt = _context(definition, opening) + "\n" + text[:quotes]
    return definition.row("docstring", prompt, text[quotes:])


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def kept_share(edited: str, text: str) -> float:
    """Return the share of the edited lines, blank ones aside, that stand in the text as they are."""
    lines = [line for line in edited.split("\n") if line.strip()]
    return sum(line in text.split("\n") for line in lines) / len(lines)


def _edit(definition: Definition) -> tuple[str, str]:
    """Return (instruction, edited copy) of a definition; which edit follows from its name and place."""
    node, text = definition.node, definition.text
    if isinstance(node, ast.ClassDef):
        return f"# A variant of {node.name}.", _renamed(text, node.name, f"{node.name}Variant")
    names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
    edited = _renamed(text, names[0], "arg") if names else text
    if names and node.lineno % 2 and kept_share(edited, text) >= MIN_KEPT:
        return f"# The same function with `{names[0]}` renamed to `arg`.", edited
    return "# The same function under another name.", text.replace(f"def {node.name}", f"def new_{node.name}", 1)


def copy_heavy(definition: Definition) -> Prompt | None:
    """Return a definition, an instruction to edit it and the edited copy's first lines, or None where it is short."""
    if definition.last - definition.first < 14:
        return None
    instruction, edited = _edit(definition)
    shown = definition.node.body[0].lineno - definition.first
    lines = edited.split("\n")
    prompt = "\n".join([definition.text, "", "", instruction, *lines[:shown]])
    return definition.row("copy_heavy", prompt, "\n".join(["", *lines[shown:]]))


KINDS: dict[str, Callable[[Definition], Prompt | None]] = {
    "completion": completion,
    "copy_heavy": copy_heavy,
    "docstring": docstring,
}


def _spread(prompts: Iterable[Prompt], count: int) -> list[Prompt]:
    """Return ``count`` prompts, in turns from every module, in an order given by the hash of their ids."""
    modules: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: hashlib.sha256(prompt.id.encode()).digest()):
        modules.setdefault(prompt.module, []).append(prompt)
    turns = [(turn, module) for module, rows in modules.items() for turn in range(len(rows))]
    return [modules[module][turn] for turn, module in sorted(turns)[:count]]


def make_prompts(sources: Iterable[SourceFile], tokenizer: Tokenizer) -> list[Prompt]:
    """Return ``PER_KIND`` prompts of every kind, kinds in turn, each of ``MIN_TOKENS`` to ``MAX_TOKENS`` tokens.

    Args:
        sources: the held-out files.
        tokenizer: of the model that will read the prompts; it measures their lengths.
    """
    found = list(definitions(sources))
    kinds = []
    for make in KINDS.values():
        made = [prompt for prompt in map(make, found) if prompt is not None]
        lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch([row.prompt for row in made])]
        fitting = [row for row, length in zip(made, lengths, strict=True) if MIN_TOKENS <= length <= MAX_TOKENS]
        kinds.append(_spread(fitting, PER_KIND))
    return [prompt for group in zip(*kinds, strict=True) for prompt in group]


def main() -> None:
    """Write the prompts as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    prompts = make_prompts(read_split("heldout"), Tokenizer.from_file(str(TOKENIZER)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts), encoding="utf-8")
    print(f"{len(prompts)} prompts in {args.out}")


if __name__ == "__main__":
    main()
