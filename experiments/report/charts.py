"""Charts as plotly reads them, drawn by ``charts.js`` in the reader's colours.

Colours are CSS with the page's custom properties, such as ``var(--c1)``; ``charts.js`` turns them into numbers, and
does so again when the reader's colours change. Texts are escaped, because plotly reads tags in them.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec.stats.report import Interval, format_estimate

COLOURS = 8
# The number of what is no arm beside plain decoding: plain decoding itself, and theory.
THEORY = -1
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
MUTED, LINE, INK, PAPER = "var(--muted)", "var(--line)", "var(--ink)", "var(--paper)"
# Pixels of a horizontal bar, and of what stands around the bars.
_BAR, _AROUND = 26, 90
_LONGEST_LABEL = 26


@dataclass(frozen=True)
class Picture:
    """A chart and what it says.

    Attributes:
        title: plain text.
        note: what is drawn, in plain text.
        traces, layout: of plotly.
        rows: the numbers that are drawn, as a table.
    """

    title: str
    note: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Point:
    """A point and, if there is one, the interval of its height."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(x: float, interval: Interval) -> "Point":
        """Return an estimate with its interval."""
        return Point(x, interval.value, interval.low, interval.high)

    def __str__(self) -> str:
        return format_estimate(self.y, self.low, self.high)


@dataclass(frozen=True)
class Series:
    """Points of one name.

    Attributes:
        name: plain text.
        number: decides colour and symbol; an arm has one on the whole page.
        points: measured.
        curve: of theory, (x, y).
    """

    name: str
    number: int
    points: Sequence[Point] = ()
    curve: Sequence[tuple[float, float]] = field(default=())


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a text as plotly shows it: cut, on one line, without tags."""
    line = " ".join(text.split())
    return html.escape(line if len(line) <= longest else f"{line[: longest - 1]}…", quote=False)


def colour(number: int) -> str:
    """Return the colour of a series."""
    return MUTED if number == THEORY else f"var(--c{number % COLOURS + 1})"


def mix(share: float, of: str) -> str:
    """Return a share of a colour on the paper's."""
    return f"color-mix(in oklab, {of} {share:.0%}, {PAPER})"


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of plotly."""
    return {"title": {"text": label(title, 80)}, **more}


def _error(points: Sequence[Point]) -> dict[str, Any]:
    up = [0.0 if point.high is None else point.high - point.y for point in points]
    down = [0.0 if point.low is None else point.y - point.low for point in points]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 3}


def _scatter(series: Series, joined: bool) -> dict[str, Any]:
    # The ninth series has the first colour again, with another symbol.
    symbol = SYMBOLS[(series.number + series.number // COLOURS) % len(SYMBOLS)]
    return {
        "type": "scatter",
        "name": label(series.name),
        "mode": "lines+markers" if joined else "markers",
        "x": [point.x for point in series.points],
        "y": [point.y for point in series.points],
        "error_y": {**_error(series.points), "color": colour(series.number)},
        "marker": {"color": colour(series.number), "symbol": symbol, "size": 8},
        "line": {"color": colour(series.number), "width": 1.5},
        "legendgroup": f"{series.number} {label(series.name)}",
        "hovertemplate": "%{fullData.name}<br>%{x}: %{y:.3f}<extra></extra>",
    }


def _curve(series: Series) -> dict[str, Any]:
    x, y = zip(*series.curve, strict=True)
    return {
        "type": "scatter",
        "name": f"{label(series.name)}, theory",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "line": {"color": colour(series.number), "width": 1.5, "dash": "dash"},
        "legendgroup": f"{series.number} {label(series.name)}",
        "showlegend": not series.points,
        "hovertemplate": "%{fullData.name}<br>%{x}: %{y:.3f}<extra></extra>",
    }


def points(
    title: str, note: str, across: str, up: str, drawn: Sequence[Series], joined: bool = False, **layout: Any
) -> Picture:
    """Return measured points with their intervals, and curves of theory.

    Args:
        title, note: see ``Picture``.
        across, up: labels of the axes, with units.
        drawn: at least one series with points.
        joined: whether lines join the points.
        layout: more of plotly's.
    """
    traces = [trace for one in drawn if one.curve for trace in [_curve(one)]]
    traces += [_scatter(one, joined) for one in drawn if one.points]
    rows = [{"series": one.name, across: point.x, up: str(point)} for one in drawn for point in one.points]
    axes = {"xaxis": axis(across), "yaxis": axis(up, rangemode="tozero")}
    return Picture(title, note, traces, {"height": 400, **axes, **layout}, rows)


def with_level_1(picture: Picture, of: str = "y") -> Picture:
    """Return a picture with a thin line through 1 of an axis, "x" or "y", across the chart."""
    other = "x" if of == "y" else "y"
    line = {"type": "line", "line": {"color": MUTED, "width": 1, "dash": "dot"}, f"{other}ref": "paper"}
    ends = {f"{of}0": 1.0, f"{of}1": 1.0, f"{other}0": 0, f"{other}1": 1}
    return replace(picture, layout={**picture.layout, "shapes": [line | ends]})


def _names(arms: Sequence[str]) -> dict[str, Any]:
    """Return an axis with a name at every whole number, the first on top."""
    return {
        "tickvals": list(range(len(arms))),
        "ticktext": [label(arm) for arm in arms],
        "range": [len(arms) - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
    }


def dots_by_name(
    title: str, note: str, across: str, found: Mapping[str, Mapping[str, Interval]], numbers: Mapping[str, int]
) -> Picture:
    """Return intervals of named things below one another, each in its colour, of several series with a symbol each.

    Args:
        title, note: see ``Picture``.
        across: label of the axis, with its unit.
        found: name -> series -> interval; at least one, with the same series each.
        numbers: name -> number, which decides its colour.
    """
    names, series = list(found), list(next(iter(found.values())))
    colours = [colour(numbers[name]) for name in names]
    traces = []
    for number, one in enumerate(series):
        at = [i + 0.6 * ((number + 0.5) / len(series) - 0.5) for i in range(len(names))]
        drawn = [Point.of(0.0, found[name][one]) for name in names]
        # All error bars of a series have one colour.
        error: dict[str, Any] = {**_error(drawn), "color": MUTED}
        traces.append({
            "type": "scatter",
            "mode": "markers",
            "name": label(one),
            "x": [point.y for point in drawn],
            "y": at,
            "error_x": error,
            "marker": {"color": colours, "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
            "customdata": [label(name) for name in names],
            "hovertemplate": "%{customdata}, %{fullData.name}: %{x:.3f}<extra></extra>",
        })  # fmt: skip
    height = _AROUND + len(names) * max(_BAR, 12 * len(series))
    layout = {"height": height, "xaxis": axis(across, rangemode="tozero"), "yaxis": _names(names)}
    rows = [{"arm": name, **{one: str(interval) for one, interval in by.items()}} for name, by in found.items()]
    return Picture(title, note, traces, layout, rows)


def stack_bars(
    title: str,
    note: str,
    across: str,
    found: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, Sequence[str]],
    form: str,
    **more: Any,
) -> Picture:
    """Return horizontal bars of parts that follow one another.

    Args:
        title, note: see ``Picture``.
        across: label of the axis, with its unit.
        found: name -> part -> length; at least one. A part that is absent is 0.
        colours: part -> its colour of each name, in the order of the parts.
        form: plotly's format of a length, such as ``.0%``.
        more: of the axis.
    """
    names = list(found)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(part),
            "x": [found[name].get(part, 0.0) for name in names],
            "y": list(range(len(names))),
            "marker": {"color": list(colours[part]), "line": {"color": PAPER, "width": 1}},
            "texttemplate": f"%{{x:{form}}}",
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "customdata": [label(name) for name in names],
            "hovertemplate": f"%{{customdata}}, %{{fullData.name}}: %{{x:{form}}}<extra></extra>",
        }
        for part in colours
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.25,
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "height": _AROUND + _BAR * len(names),
        "xaxis": axis(across, **more),
        "yaxis": _names(names),
    }
    rows = [{"arm": name, **{part: found[name].get(part, 0.0) for part in colours}} for name in names]
    return Picture(title, note, traces, layout, rows)
