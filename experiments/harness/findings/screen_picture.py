"""What a terminal shows, as a picture: SVG or PNG, dark on any page; it loads nothing from elsewhere."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
# In points. The font that matplotlib brings is 0.602 of its size wide; so wide are most that a reader has.
_FONT, _SIZE, _LINE, _MARGIN, _DPI = "DejaVu Sans Mono", 11.0, 15.0, 12.0, 144
_CELL = 0.602 * _SIZE


@dataclass(frozen=True)
class Run:
    """Text of one style on a line.

    Attributes:
        x, y: of its left end and of the line's top, in points.
        text: without spaces around it.
        begin, width: where this text begins in the run, and how long the run is, in points.
        colour, below: of the text and of what lies below it, as hexadecimal numbers; None: the screen itself.
        bold: how it is written.
    """

    x: float
    y: float
    text: str
    begin: float
    width: float
    colour: str
    below: str | None
    bold: bool


def picture_path(text: str) -> Path:
    """Return the path of a picture; its ending says of which kind it is."""
    path = Path(text)
    if path.suffix not in _WRITERS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}; make it first")
    return path


def write_picture(path: Path, shown: RenderableType, title: str) -> None:
    """Write what a terminal of 100 columns shows; the title is what an SVG file says of itself.

    The same screen gives the same file. Cost: O(characters).
    """
    console = Console(width=COLUMNS, file=StringIO(), highlight=False)
    lines = console.render_lines(shown, pad=False)
    pieces = [[(text, style or Style()) for text, style, _ in Segment.simplify(line)] for line in lines]
    size = COLUMNS * _CELL + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    _WRITERS[path.suffix](path, list(_runs(pieces)), size, title)


def _runs(lines: Sequence[Sequence[tuple[str, Style]]]) -> Iterator[Run]:
    """Yield what lines show, piece by piece."""
    for number, line in enumerate(lines):
        x = _MARGIN
        for text, style in line:
            width, inner = cell_len(text) * _CELL, text.strip()
            before = (len(text) - len(text.lstrip())) * _CELL
            yield Run(x, _MARGIN + number * _LINE, inner, before, width, *_colours(style), bool(style.bold))
            x += width


def _colours(style: Style) -> tuple[str, str | None]:
    """Return the colours of text and of what lies below it (None: the screen's own), as hexadecimal numbers."""
    own = _THEME.foreground_color if style.color is None else style.color.get_truecolor(_THEME)
    below = None if style.bgcolor is None else style.bgcolor.get_truecolor(_THEME, foreground=False)
    if style.dim:
        own = blend_rgb(own, below or _THEME.background_color, 0.4)
    return own.hex, None if below is None else below.hex


def _write_svg(path: Path, runs: Sequence[Run], size: tuple[float, float], title: str) -> None:
    """Write text as text, in the reader's own font; each piece says how long it is."""
    width, height = size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text {{ font-family: '{_FONT}', Menlo, Consolas, monospace; white-space: pre }}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{_THEME.background_color.hex}"/>',
    ]
    for run in runs:
        if run.below is not None:
            box = f'x="{run.x:.2f}" y="{run.y:g}" width="{run.width:.2f}" height="{_LINE:g}"'
            parts.append(f'<rect {box} fill="{run.below}"/>')
        if run.text:
            place = f'x="{run.x + run.begin:.2f}" y="{run.y + 0.73 * _LINE:g}"'
            length = f'textLength="{cell_len(run.text) * _CELL:.2f}"' + ' font-weight="bold"' * run.bold
            look = f'font-size="{_SIZE:g}" fill="{run.colour}" xml:space="preserve"'
            parts.append(f"<text {place} {length} {look}>{escape(run.text)}</text>")
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _write_png(path: Path, runs: Sequence[Run], size: tuple[float, float], title: str) -> None:
    """Write the pixels."""
    width, height = size
    figure = Figure(figsize=(width / 72, height / 72), facecolor=_THEME.background_color.hex)
    for run in runs:
        if run.below is not None:
            place, extent = (run.x / width, 1 - (run.y + _LINE) / height), (run.width / width, _LINE / height)
            figure.add_artist(Rectangle(place, *extent, facecolor=run.below, transform=figure.transFigure))
        figure.text(
            (run.x + run.begin) / width, 1 - (run.y + 0.73 * _LINE) / height, run.text, family=_FONT, size=_SIZE,
            color=run.colour, weight="bold" if run.bold else "normal", va="baseline", parse_math=False,
        )  # fmt: skip
    figure.savefig(path, dpi=_DPI, metadata={"Software": None, "Title": title})


_WRITERS = {".svg": _write_svg, ".png": _write_png}
