"""What an oracle wrote, as Markdown that can stand in a page."""

import re
from collections.abc import Mapping

# Of a prompt; a reader needs its end.
LAST_LINES = 8


def format_section(title: str, prompt: str, written: Mapping[str, str]) -> str:
    """Return a section with the end of a prompt and what was written after it.

    Args:
        title: of the section.
        prompt: of which the last lines are shown.
        written: how it was written -> the text.
    """
    ending = "\n".join(prompt.split("\n")[-LAST_LINES:])
    parts = {"The prompt ends": ending, **written}
    return "\n\n".join([f"### {title}", *(f"{name}:\n\n{code_block(text)}" for name, text in parts.items())])


def code_block(text: str) -> str:
    """Return a block of code, its fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"
