"""What rules that look ahead do with one draft, coin by coin: every beginning of a chain, every node of a tree."""

import itertools
from collections.abc import Sequence

import numpy as np


def _leave(law: np.ndarray, drawn_from: np.ndarray, weight: float) -> tuple[np.ndarray, float]:
    """Return the law and the weight that a draw leaves of a law and a weight."""
    rest = np.maximum(weight * law - drawn_from, 0)
    mass = float(rest.sum())
    return (rest / mass, mass / (mass + (1 - weight))) if mass > 0 else (law, 0.0)


def _weight(law: np.ndarray, drawn_from: np.ndarray, weight: float, token: int) -> float:
    return min(1.0, weight * float(law[token] / drawn_from[token]))


def block_stops(tokens: Sequence[int], target: np.ndarray, drawn_from: np.ndarray) -> np.ndarray:
    """Return the probability of each stop of block verification ``[N+1]``, over all outcomes of its N coins.

    Args:
        tokens: the chain.
        target: ``[N+1, V]``, the target's law before the first token, before the second and so on.
        drawn_from: ``[N, V]``, what the tokens were drawn from.
    """
    weight, stands = 1.0, []
    for node, token in enumerate(tokens):
        weight = _weight(target[node], drawn_from[node], weight, token)
        is_last = node + 1 == len(tokens)
        stands.append(weight if is_last else _leave(target[node + 1], drawn_from[node + 1], weight)[1])
    stops = np.zeros(len(tokens) + 1)
    for coins in itertools.product((True, False), repeat=len(tokens)):
        chance = np.prod([own if coin else 1 - own for own, coin in zip(stands, coins, strict=True)])
        stops[max((node + 1 for node, coin in enumerate(coins) if coin), default=0)] += chance
    return stops


def traversal_stops(
    tokens: Sequence[int], parents: Sequence[int], target: np.ndarray, drawn_from: np.ndarray
) -> np.ndarray:
    """Return the probability of each stop ``[N+1]`` of a walk from the leaves to the root, one node after the other.

    Args:
        tokens, parents: of the nodes; -1 for the root.
        target: ``[N+1, V]``, the target's law at the root and at every node.
        drawn_from: ``[N, V]``, what the tokens were drawn from, given their earlier siblings.
    """
    stops = np.zeros(len(tokens) + 1)

    def ask(node: int, weight: float, asked: float) -> float:
        """Ask what stands below a node and then the node; return the probability that nothing of it stands."""
        law = target[node + 1]
        for child in (child for child, parent in enumerate(parents) if parent == node):
            asked = ask(child, _weight(law, drawn_from[child], weight, tokens[child]), asked)
            law, weight = _leave(law, drawn_from[child], weight)
        stops[node + 1] = asked * weight
        return asked * (1 - weight)

    ask(-1, 1.0, 1.0)
    return stops
