"""Static trees with the acceptance of every node."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.charts import INK, LINE, MUTED, PAPER, Picture, axis, mix

Path = tuple[int, ...]
# Pixels that a tree's leaves share, and the sizes that a node may have.
_WIDTH, _SMALLEST, _LARGEST, _READABLE = 280, 9, 34, 24


def acceptance(records: Sequence[Mapping[str, Sequence[Any]]], paths: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """Return how often each node of a tree was accepted, and its parent, over steps with the whole tree.

    Args:
        records: of an arm, a unit each.
        paths: the tree's.
    """
    stood: Counter[Path] = Counter()
    for columns in records:
        for ranks, shortened in zip(columns["ranks"], columns["shortened"], strict=True):
            if not shortened:
                stood.update(tuple(ranks[:depth]) for depth in range(len(ranks) + 1))
    return {path: (stood[path], stood[path[:-1]]) for path in paths}


def _places(paths: Sequence[Path]) -> dict[Path, float]:
    """Return where nodes and the pending token ``()`` are across: leaves side by side, others above theirs."""
    nodes = sorted([(), *paths])
    children: dict[Path, list[Path]] = {node: [] for node in nodes}
    for node in nodes[1:]:
        children[node[:-1]].append(node)
    leaves = [node for node in nodes if not children[node]]
    places = {node: float(i) for i, node in enumerate(leaves)}
    for node in sorted(nodes, key=len, reverse=True):
        if children[node]:
            places[node] = sum(places[child] for child in children[node]) / len(children[node])
    return places


def _lines(places: Mapping[Path, float]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for node in places:
        if node:
            x += [places[node[:-1]], places[node], None]
            y += [len(node) - 1, len(node), None]
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip", "showlegend": False} | {
        "line": {"color": MUTED, "width": 1}
    }


def _nodes(places: Mapping[Path, float], rates: Mapping[Path, float | None], size: int, colour: str) -> dict[str, Any]:
    texts = ["-" if rate is None else f"{rate:.0%}" for rate in rates.values()]
    scale = [[0.0, mix(0.04, colour)], [1.0, mix(0.65, colour)]]
    bar = {"tickformat": ".0%", "tickvals": [0.0, 0.5, 1.0], "thickness": 10, "outlinewidth": 0}
    return {
        "type": "scatter",
        "mode": "markers+text" if size >= _READABLE else "markers",
        "x": [places[node] for node in rates],
        "y": [len(node) for node in rates],
        "text": texts,
        "textfont": {"color": INK, "size": 9},
        "hovertext": [f"{'.'.join(map(str, node))}: {text}" for node, text in zip(rates, texts, strict=True)],
        "hoverinfo": "text",
        "showlegend": False,
        "marker": {
            "size": size,
            "symbol": "square",
            "color": [rate or 0.0 for rate in rates.values()],
            "cmin": 0.0,
            "cmax": 1.0,
            "colorscale": scale,
            "colorbar": bar,
            "line": {"color": LINE, "width": 1},
        },
    }


def tree_map(arm: str, paths: Sequence[Path], records: Sequence[Mapping[str, Sequence[Any]]], colour: str) -> Picture:
    """Return a static tree whose nodes are coloured by their acceptance, given that the parent was accepted.

    Args:
        arm: its name.
        paths: its nodes.
        records: of its steps, a unit each.
        colour: of the arm.
    """
    found, places = acceptance(records, paths), _places(paths)
    rates = {node: stood / reached if reached else None for node, (stood, reached) in found.items()}
    leaves, depth = int(max(places.values())) + 1, max(map(len, paths))
    size = min(max(_WIDTH // leaves, _SMALLEST), _LARGEST)
    root = {"type": "scatter", "mode": "markers", "x": [places[()]], "y": [0], "showlegend": False} | {
        "marker": {"size": 12, "color": PAPER, "line": {"color": INK, "width": 1.5}},
        "hovertext": ["the pending token"],
        "hoverinfo": "text",
    }
    deep = axis("depth, tokens", range=[depth + 0.5, -0.4], dtick=1, showgrid=False, zeroline=False)
    layout = {
        "height": 130 + 62 * depth,
        "xaxis": {"visible": False, "range": [-0.7, leaves - 0.3]},
        "yaxis": deep,
    }
    rows = [
        {"node": ".".join(map(str, node)), "accepted": rates[node], "stood": stood, "parent stood": reached}
        for node, (stood, reached) in found.items()
    ]
    note = "Share of the steps in which a node's token stood, of those in which its parent's did; whole trees only."
    traces = [_lines(places), _nodes(places, rates, size, colour), root]
    return Picture(f"Acceptance by node: {arm}", note, traces, layout, rows)
