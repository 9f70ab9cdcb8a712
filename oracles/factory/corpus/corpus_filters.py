"""Which files the corpus wants (no tests, copies, tables, generated text), and their text without licence headers."""

import ast
import re
import warnings
from collections.abc import Iterator

MIN_TEXT_BYTES = 200
MAX_FILE_BYTES = 256 * 1024
MAX_LINE, MAX_MEAN_LINE = 1000, 80
# A literal with this many constants, or a string of this many characters that is no docstring, is a table; a file with
# more than half of its bytes in tables is left out.
TABLE_CONSTANTS = 64
TABLE_STRING = 2048
TABLE_SHARE = 0.5
# Markers of generated text or of a copyleft licence count within this many characters at the top.
TOP = 3000

STDLIB_FOLDERS = frozenset({"site-packages", "idlelib", "lib2to3", "encodings", "pydoc_data", "__pycache__"})
# Folders with copies of others' packages, and with files that tools write: schema migrations, generated modules.
_UNWANTED_FOLDER = re.compile(
    r"_?vendor(ed)?|build|extern|_?external|externals|third_?party|(_|alembic_|db_)?migrations|__generated__"
)
# A folder or file with one of these among its words holds tests or their data.
_TEST = re.compile(r"(^|[-_])(tests?|conftest|fixtures?|testdata|testfiles|testsuites?)($|[-_])", re.IGNORECASE)
_GENERATED_FILE = re.compile(r"versioneer|.*_pb2(_grpc)?|(.*_)?(parse|lex|yacc)tab")
_GENERATED = re.compile(
    r"@generated|do not (edit|modify)|auto-?\s?generated|automatically generated"
    r"|#[^\n]*\bgenerated (by|from|automatically|using|with)\b",
    re.IGNORECASE,
)
_COPYLEFT = re.compile(
    r"\b[AL]?GPL|(?i:general public licen[cs]e|mozilla public|creative commons|\bCC[- ]BY)|\bMPL\b|\bCDDL\b"
)
# A paragraph with one of these is a notice of licence or copyright.
_NOTICE = re.compile(
    r"copyright|licen[cs]e|\(c\)\s*\d{4}|all rights reserved|spdx-|redistribut|warrant(y|ies)|without limitation"
    r"|permission is hereby|\bAS IS\b|SOFTWARE IS PROVIDED|LIABILITY",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\n)*+(?:[ \t]*+#[^\n]*+\Z)?")
_DOCSTRING = re.compile(
    r"(?P<open>[rRuU]?(?P<quotes>\"\"\"|'''))(?P<body>.*?)(?P=quotes)(?=[ \t]*(?:\n|#|\Z))", re.DOTALL
)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def is_corpus_path(path: str) -> bool:
    """Tell whether a file may belong to the corpus by its path: Python, no test, no test data, no copy of others'."""
    *folders, name = path.split("/")
    stem = name.removesuffix(".py")
    if stem == name or _GENERATED_FILE.fullmatch(stem):
        return False
    return not any(map(_UNWANTED_FOLDER.fullmatch, folders)) and not any(map(_TEST.search, [*folders, stem]))


def is_stdlib_corpus_path(path: str) -> bool:
    """Tell the same for a path below the standard library, where codec tables and machine settings are refused too."""
    parts = path.split("/")
    machine = parts[0].startswith(("config-", "_sysconfigdata"))
    return is_corpus_path(path) and not machine and not STDLIB_FOLDERS.intersection(parts)


def clean(data: bytes) -> str:
    """Return the text of a raw file as the corpus holds it: ``\\n`` line ends, no licence header.

    Raises:
        UnicodeDecodeError: the file is not UTF-8.
    """
    return without_licence_header(data.decode("utf-8").replace("\r\n", "\n"))


def without_licence_header(text: str) -> str:
    """Return a source text without the notices of licence and copyright at its top.

    The comments before the first statement, a docstring there, and the comments after it are searched. Paragraphs that
    hold a notice are removed; a docstring of which nothing is left is removed as a whole.

    Args:
        text: a source text with ``\\n`` line ends.
    """
    comments, rest = _split_comments(text)
    docstring = _DOCSTRING.match(rest)
    if docstring is None:
        return _join(_without_notices(comments), rest)
    after, code = _split_comments(rest[docstring.end() :])
    body = _without_notices(docstring["body"])
    kept = docstring["open"] + body + docstring["quotes"] if body.strip() else ""
    return _join(_without_notices(comments), _join(kept, _without_notices(after) + code))


def _split_comments(text: str) -> tuple[str, str]:
    match = _COMMENTS.match(text)
    end = match.end() if match else 0
    return text[:end], text[end:]


def _without_notices(text: str) -> str:
    """Return a text without its paragraphs that hold a notice; unchanged if none does."""
    if not _NOTICE.search(text):
        return text
    kept = [part for part in _BLANK_LINES.split(text) if not _NOTICE.search(part)]
    joined = "\n\n".join(kept)
    return joined + "\n" if text.endswith("\n") and not joined.endswith("\n") else joined


def _join(top: str, rest: str) -> str:
    return top + rest if top.strip() else rest.lstrip("\n")


def early_refusal(data: bytes) -> str | None:
    """Return why a raw file does not belong to the corpus, or None if no check refuses it so far.

    Cheap checks only; ``late_refusal`` holds the rest.
    """
    if len(data) > MAX_FILE_BYTES:
        return "too large"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if _GENERATED.search(text, 0, TOP):
        return "generated"
    if _COPYLEFT.search(text, 0, TOP):
        return "copyleft notice"
    lines = text.split("\n")
    if max(map(len, lines)) > MAX_LINE or len(text) > MAX_MEAN_LINE * len(lines):
        return "long lines"
    return "nearly empty" if len(clean(data).encode()) < MIN_TEXT_BYTES else None


def late_refusal(text: str) -> str | None:
    """Return why a cleaned text does not belong to the corpus, or None if it does."""
    try:
        return "table" if table_share(text) > TABLE_SHARE else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "not Python"


def parse_source(text: str) -> ast.Module:
    """Return the syntax tree of a source text, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def table_share(text: str) -> float:
    """Return the share of a source text's bytes that are in tables (see ``TABLE_CONSTANTS``)."""
    lines = text.split("\n")
    total = 0
    queue: list[ast.AST] = [parse_source(text)]
    while queue:
        node = queue.pop()
        if _is_table(node):
            total += _num_bytes(node, lines)
        else:
            queue.extend(_children(node))
    return total / max(1, len(text.encode()))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one; none below a docstring or another string that is a statement by itself."""
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return iter(()) if alone else ast.iter_child_nodes(node)


def _is_table(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes) and len(node.value) >= TABLE_STRING
    is_literal = isinstance(node, ast.Dict | ast.List | ast.Tuple | ast.Set)
    return is_literal and sum(isinstance(part, ast.Constant) for part in ast.walk(node)) >= TABLE_CONSTANTS


def _num_bytes(node: ast.AST, lines: list[str]) -> int:
    """Return the length of a node's source; its columns count bytes already."""
    if not isinstance(node, ast.expr) or node.end_lineno is None or node.end_col_offset is None:
        return 0
    whole = lines[node.lineno - 1 : node.end_lineno - 1]
    return sum(len(line.encode()) + 1 for line in whole) - node.col_offset + node.end_col_offset
