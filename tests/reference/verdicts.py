"""What a decision on one drafted tree means, node by node in plain Python."""

from dataclasses import dataclass, field


@dataclass
class ScalarOutcome:
    """The counts of one row's step."""

    path: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    node_sources: list[int] = field(default_factory=list)
    tried_sources: list[int] = field(default_factory=list)
    num_drafted: int = 0
    num_scouts: int = 0
    draft_depth: int = 0
    num_children_at_stop: int = 0


def depth_of(node: int, parents: list[int]) -> int:
    """Return how many draft nodes lead to ``node``, itself included."""
    return 0 if node < 0 else 1 + depth_of(parents[node], parents)


def scalar_outcome(
    tokens: list[int], parents: list[int], scouts: list[bool], sources: list[int], stop: int, next_id: int
) -> ScalarOutcome:
    """Return the outcome of a walk that ends at scoring node ``stop`` (0 = root) of a tree without padding."""
    row = ScalarOutcome()
    node = stop - 1
    while node >= 0:
        row.path.insert(0, node + 1)
        node = parents[node]
    row.path.insert(0, 0)
    for place in row.path[1:]:
        siblings = [n for n in range(len(tokens)) if parents[n] == parents[place - 1] and not scouts[n]]
        row.ranks.append(siblings.index(place - 1))
        row.sources.append(sources[place - 1])
        row.block.append(tokens[place - 1])
    row.block.append(next_id)
    verified = [n for n in range(len(tokens)) if not scouts[n]]
    row.node_sources = [-1 if scout else source for scout, source in zip(scouts, sources, strict=True)]
    tried: list[int] = []
    for at, entered in zip(row.path, [*row.path[1:], None], strict=True):
        children = [n for n in verified if parents[n] == at - 1]
        tried += children if entered is None else children[: children.index(entered - 1) + 1]
    row.tried_sources = [source if n in tried else -1 for n, source in enumerate(sources)]
    row.num_drafted = len(verified)
    row.num_scouts = len(tokens) - len(verified)
    row.draft_depth = max((depth_of(n, parents) for n in verified), default=0)
    row.num_children_at_stop = sum(parents[n] == stop - 1 for n in verified)
    return row
