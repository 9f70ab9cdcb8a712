"""Taking licence headers off the top of source files."""

import re

# A paragraph with one of these is a notice of licence or copyright.
NOTICE = re.compile(
    r"copyright|licen[cs]e|\(c\)\s*\d{4}|all rights reserved|spdx-|redistribut|warrant(y|ies)|without limitation"
    r"|permission is hereby|\bAS IS\b|SOFTWARE IS PROVIDED|LIABILITY",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\n)*+(?:[ \t]*+#[^\n]*+\Z)?")
_DOCSTRING = re.compile(
    r"(?P<open>[rRuU]?(?P<quotes>\"\"\"|'''))(?P<body>.*?)(?P=quotes)(?=[ \t]*(?:\n|#|\Z))", re.DOTALL
)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def without_licence_header(text: str) -> str:
    """Return a source text without the notices of licence and copyright at its top.

    Looked at are the comments before the first statement, a docstring there, and the comments after it. Of each, the
    paragraphs that hold a notice go; a docstring of which nothing is left goes as a whole.

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
    if not NOTICE.search(text):
        return text
    kept = [part for part in _BLANK_LINES.split(text) if not NOTICE.search(part)]
    joined = "\n\n".join(kept)
    return joined + "\n" if text.endswith("\n") and not joined.endswith("\n") else joined


def _join(top: str, rest: str) -> str:
    return top + rest if top.strip() else rest.lstrip("\n")
