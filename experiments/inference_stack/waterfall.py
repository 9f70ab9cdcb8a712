"""The picture of the stack: what every idea adds, a panel for every batch size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.stats.report import row_of_axes

# name, tokens a second; None: it failed at the gate
Bars = Sequence[tuple[str, float | None]]
_FIRST, _UP, _DOWN, _BESIDE = "0.35", "tab:green", "tab:red", "tab:blue"


def draw(path: Path, panels: Mapping[str, Bars], chained: int) -> None:
    """Write a PNG of tokens a second, on a logarithmic scale.

    Args:
        path: of the file.
        panels: title -> an arm after the other.
        chained: so many arms build on one another: a bar reaches from the speed before to its own, with their ratio;
            each of the others reaches from the last of these.
    """
    height = 1.2 + 0.32 * max(map(len, panels.values()))
    figure, row = row_of_axes(len(panels), (4.2 * len(panels), height))
    for number, (axes, (title, bars)) in enumerate(zip(row, panels.items(), strict=True)):
        _panel(axes, bars, chained)
        axes.set_title(title)
        axes.set_xscale("log")
        axes.set_xlabel("tokens/s")
        axes.set_yticks(range(len(bars)), [name for name, _ in bars] if number == 0 else [""] * len(bars))
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3, linewidth=0.5)
    figure.savefig(path, dpi=120)


def _panel(axes: Any, bars: Bars, chained: int) -> None:
    speeds = [speed for _, speed in bars if speed is not None]
    if not speeds:
        return
    before = None
    for place, (_, speed) in enumerate(bars):
        if speed is None:
            axes.text(min(speeds), place, "failed", va="center", fontsize="small")
            continue
        start = min(speeds) / 2 if before is None else before
        colour = _FIRST if before is None else _DOWN if speed < start else _UP if place < chained else _BESIDE
        axes.barh(place, speed - start, left=start, color=colour, height=0.7)
        label = f" {speed:,.0f}" if before is None else f" {speed:,.0f}  x{speed / before:.2f}"
        axes.text(max(speed, start), place, label, va="center", fontsize="small")
        before = speed if before is None or place < chained else before
    axes.set_xlim(min(speeds) / 2, max(speeds) * 6)
