"""An oracle's promises as one line of a test: on its cache it scores chains and trees as it scores whole sequences."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from specdec.cache import LEAST_CONTEXT, Reading, check_scores, node_by_node
from specdec.contracts import BITWISE_NODES, Oracle, capability_of, check_has_laws, check_model

_LENGTH, _DEPTH = 130, 8


def check_oracle(
    oracle: Oracle,
    reference: Oracle | Callable[[Tensor], Tensor] | None = None,
    *,
    length: int | None = None,
    depth: int = _DEPTH,
) -> None:
    """Check that an oracle's scores do not depend on how passes are cut, and that its cache keeps what stands.

    Rows of different lengths are scored together: a text in chunks of 1 to 128 ids; trees, as a whole and level by
    level (``first``), also with two roots; a kept branch, in part, and what follows it; a text that was taken back; a
    row that is emptied and used again. ``want`` is "all", "last" and "none", and the first and the last hidden layer
    are asked for if there are any. All logits are compared with those of whole sequences, read node by node on a cache
    of their own. The logits' shape and dtype, the likeliest ids, the cache's lengths, what is written to the caller's
    tensors, and whether a pass says the same twice are looked at as well.

    Args:
        oracle: of one's own, or any other but recorded texts.
        reference: another oracle of the same laws, or a function that returns the logits ``[T, V]`` of a sequence
            ``[T]``, such as a forward without a cache; hidden layers are not compared then. None: the oracle itself,
            whose single nodes are believed.
        length: ids that stand before the trees; faults that begin later are not seen, so give more than the window of
            a layer. None: 130, or as many as the context has.
        depth: of the largest tree, at least 6.

    Raises:
        AssertionError: with what differs, by how much, and where.
        ValueError: recorded texts, or lengths that the context has no room for.

    Guarantee: an oracle that says ``bitwise`` is compared with itself bit for bit, if the largest tree has at most
        ``BITWISE_NODES``. Otherwise the root mean square of
        the differences of a node's logits may be 1e-5 of the logits' standard deviation in float64, 5e-4 in float32 and
        0.1 in half precision, of hidden layers likewise. Half precision shows only gross errors. What ``chains``,
        ``num_layers`` and ``prefix_key`` promise beside ``score`` is not looked at.
    Cost: about 25 passes and, without a function as reference, about 16 (``length`` + ``depth``) of one node.
    """
    check_model(oracle, "oracle")
    check_has_laws(oracle, "check_oracle")
    longest = oracle.max_context - depth
    if oracle.max_context < LEAST_CONTEXT or depth < LEAST_CONTEXT // 2 or longest < 1:
        raise ValueError(
            f"depth={depth} in a context of {oracle.max_context}: give 6 or more, in a context of at least "
            f"{LEAST_CONTEXT} that is longer"
        )
    length = min(_LENGTH, longest) if length is None else length
    if not 1 <= length <= longest:
        raise ValueError(
            f"length={length}: give 1 to {longest}, what the context leaves before trees of {depth} levels"
        )
    num_hidden = 0 if reference is not None else int(capability_of(oracle, "hidden_layers"))
    layers = tuple(sorted({0, num_hidden - 1})) if num_hidden else ()
    prefixes = (length, max(length // 2, 1))
    exact = reference is None and oracle.bitwise and 2 * depth - 1 <= BITWISE_NODES
    check_scores(oracle, _reading(oracle, reference, layers), prefixes, depth, layers=layers, bit_for_bit=exact)


def _reading(oracle: Oracle, reference: Oracle | Callable[[Tensor], Tensor] | None, layers: tuple[int, ...]) -> Reading:
    """Return how whole sequences are read."""
    if reference is None:
        return node_by_node(oracle, layers)
    if not callable(reference):
        check_model(reference, "reference")
        return node_by_node(reference)
    return partial(_call, reference)


def _call(function: Callable[[Tensor], Tensor], ids: Tensor) -> tuple[Tensor, ...]:
    return (function(ids),)
