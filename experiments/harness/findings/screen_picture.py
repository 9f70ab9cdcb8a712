"""What a terminal shows, as an SVG picture, dark on any page; it loads nothing from elsewhere."""

import argparse
from html import escape
from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.color import blend_rgb
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

COLUMNS = 100
# Background, foreground; black, red, green, yellow, blue, magenta, cyan, white. Black on a colour must be legible.
_COLOURS = [
    (16, 18, 22), (255, 120, 120), (126, 214, 120), (240, 200, 80), (60, 110, 200), (220, 150, 235), (90, 205, 225),
    (225, 228, 232),
]  # fmt: skip
_THEME = TerminalTheme((24, 26, 31), (215, 218, 224), _COLOURS)
# In points. DejaVu Sans Mono is 0.602 of its size wide; so wide are most that a reader has.
_FONT, _SIZE, _LINE, _MARGIN = "DejaVu Sans Mono", 11.0, 15.0, 12.0
_CELL = 0.602 * _SIZE


def picture_path(text: str) -> Path:
    """Return the path of a picture.

    Raises:
        argparse.ArgumentTypeError: it does not end in ``.svg``, or its folder is missing.
    """
    path = Path(text)
    if path.suffix != ".svg":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .svg")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}; make it first")
    return path


def write_picture(path: Path, shown: RenderableType, title: str) -> None:
    """Write what a terminal of 100 columns shows, as text in the reader's own font.

    The title is what the file says of itself. The same screen gives the same file. Cost: O(characters).
    """
    console = Console(width=COLUMNS, file=StringIO(), highlight=False)
    lines = console.render_lines(shown, pad=False)
    width, height = COLUMNS * _CELL + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text {{ font-family: '{_FONT}', Menlo, Consolas, monospace; white-space: pre }}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{_THEME.background_color.hex}"/>',
    ]
    for number, line in enumerate(lines):
        x, y = _MARGIN, _MARGIN + number * _LINE
        for text, style, _ in Segment.simplify(line):
            parts += _piece(x, y, text, style or Style())
            x += cell_len(text) * _CELL
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _piece(x: float, y: float, text: str, style: Style) -> list[str]:
    """Return the elements of a text of one style, from its left end and its line's top; each text says its length."""
    parts, inner = [], text.strip()
    colour, below = _colours(style)
    if below is not None:
        box = f'x="{x:.2f}" y="{y:g}" width="{cell_len(text) * _CELL:.2f}" height="{_LINE:g}"'
        parts.append(f'<rect {box} fill="{below}"/>')
    if inner:
        begin = x + (len(text) - len(text.lstrip())) * _CELL
        place = f'x="{begin:.2f}" y="{y + 0.73 * _LINE:g}"'
        length = f'textLength="{cell_len(inner) * _CELL:.2f}"' + ' font-weight="bold"' * bool(style.bold)
        look = f'font-size="{_SIZE:g}" fill="{colour}" xml:space="preserve"'
        parts.append(f"<text {place} {length} {look}>{escape(inner)}</text>")
    return parts


def _colours(style: Style) -> tuple[str, str | None]:
    """Return the colours of text and of what lies below it (None: the screen's own), as hexadecimal numbers."""
    own = _THEME.foreground_color if style.color is None else style.color.get_truecolor(_THEME)
    below = None if style.bgcolor is None else style.bgcolor.get_truecolor(_THEME, foreground=False)
    if style.dim:
        own = blend_rgb(own, below or _THEME.background_color, 0.4)
    return own.hex, None if below is None else below.hex
