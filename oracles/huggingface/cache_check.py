"""How long the sequences are on which a model of the library is compared with its own forwards without a cache."""

from specdec.cache import LEAST_CONTEXT

# Up to this window, the tree is deeper than the window. Before the tree, wider ones get more tokens than they hold.
DEEPEST = 256


def sizes_to_check(limit: int | None, max_context: int) -> tuple[tuple[int, int], int]:
    """Return the tokens before the tree of each of two rows, and how deep it is.

    Args:
        limit: the most positions that a limited layer sees; None: no layer is limited.
        max_context: positions, at least ``LEAST_CONTEXT``.

    Cost: of the check, for a limit W up to 256, up to 12 passes over W + 16 tokens without a cache, and about 8 W
        tokens with one; for larger limits 12 over W + 20.
    """
    if limit is None or limit >= max_context:
        limit = 2
    long, depth = (limit + 8, 12) if limit > DEEPEST else (12, limit + 4)
    long = min(long, max_context - LEAST_CONTEXT // 2)
    return (max(long // 2, 1), long), min(depth, max_context - long)
