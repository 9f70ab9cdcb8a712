"""Shapes of trees on a command line, and the source that drafts them."""

from collections.abc import Callable, Sequence
from typing import Any

import drafts
from experiments.harness.own_places import FORM, check_names, is_place, make_own, own_name, told_at
from specdec import Chain, DraftSource, Grown, Kary, Paths, ReRanked, TreeShape
from specdec.drafting.shapes import check_shape

_KINDS: dict[str, tuple[int, Callable[..., TreeShape]]] = {
    "chain": (1, Chain),
    "kary": (2, Kary),
    "grown": (2, Grown),
    "reranked": (3, ReRanked),
}
FORMS = f"chain:4, kary:2x3, grown:8x4, reranked:8x4x3, paths:0.0,0.1,1 or your own, {FORM}"


def shapes_of(texts: Sequence[str], option: str) -> dict[str, TreeShape]:
    """Return name -> shape of the texts that an option has; what is a user's own goes by its name.

    Raises:
        ValueError: a text names none, with the option, or two have one name.
    """
    names = {text: own_name(text) if _is_own(text) else text for text in texts}
    check_names([*names.values()])
    return {name: shape_of(text, option) for text, name in names.items()}


def shape_of(text: str, option: str = "--shape") -> TreeShape:
    """Return the shape that a text names.

    ``chain:4``; ``kary:2x3`` (width x depth); ``grown:16x4`` (nodes x depth); ``reranked:16x4x3`` (nodes x depth x
    width); ``paths:0.0.0,0.1,1`` (ranks along each path); a place of a user's own.

    Args:
        text: see above.
        option: that it was given with.

    Raises:
        ValueError: it names none; with the option.
    """
    if _is_own(text):
        return _own_shape(text, option)
    kind, _, rest = text.partition(":")
    try:
        if kind == "paths":
            return Paths([[int(rank) for rank in path.split(".")] for path in rest.split(",") if path])
        count, make = _KINDS[kind]
        numbers = [int(part) for part in rest.split("x")]
        if len(numbers) != count:
            raise ValueError(f"{kind} takes {count} numbers")
        return make(*numbers)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{option}: shape {text!r} is none ({error}): give {FORMS}") from error


def _is_own(text: str) -> bool:
    return is_place(text) and text.partition(":")[0] not in (*_KINDS, "paths")


def _own_shape(place: str, option: str) -> TreeShape:
    shape: TreeShape = make_own(place)
    told_at(f"{option}: {place}", lambda: check_shape(shape))
    return shape


def tree_source(
    drafter: Any, shape: TreeShape, source: Callable[..., DraftSource] = drafts.SmallTransformer
) -> DraftSource:
    """Return a source of such trees by a model or a head; it drafts greedily if the shape allows nothing else."""
    return source(drafter, temperature=None if shape.num_kept is None else 0.0, tree=shape)
