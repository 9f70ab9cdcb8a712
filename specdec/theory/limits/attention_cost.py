"""What attention costs with a cache and without one."""

from specdec.theory.ranges import check_count

# Two products meet every position that a query sees, scores and weighted sum: a multiply-add each for every dimension.
FLOPS_PER_MEETING = 4


def visible_positions(width: int, context: int, window: int | None = None) -> int:
    """Return the positions that a chain of nodes sees, added up: sum over i < width of min(context + i + 1, window).

    Args:
        width: nodes, >= 0; each sees those before it and itself.
        context: positions before the first of them, >= 0.
        window: most positions that a node sees, its own included (None: all).

    Raises:
        ValueError: an argument is out of its range.
    """
    check_count("width", width, least=0)
    check_count("context", context, least=0)
    if window is None:
        return width * context + width * (width + 1) // 2
    check_count("window", window)
    growing = min(max(window - context, 0), width)
    return visible_positions(growing, context) + (width - growing) * window


def attention_work_naive(prompt: int, generated: int, width: int, num_layers: int = 1) -> int:
    """Return the FLOPs of attention without a cache: the sum of 4 width t^2 for prompt <= t < prompt + generated.

    Every pass computes all t queries again, and multiplies each with all t keys, those that the mask hides too.

    Args:
        prompt: tokens before the first pass, >= 1.
        generated: tokens, one a pass, >= 0.
        width: of all query heads together.
        num_layers: how many layers do so.

    Raises:
        ValueError: an argument is out of its range.

    Cost: O(generated).
    """
    _check(prompt, generated, width, num_layers)
    squares = sum(t * t for t in range(prompt, prompt + generated))
    return FLOPS_PER_MEETING * width * num_layers * squares


def attention_work_cached(
    prompt: int, generated: int, width: int, num_layers: int = 1, with_prefill: bool = False
) -> int:
    """Return the FLOPs of attention with a cache: the sum of 4 width t for prompt <= t < prompt + generated.

    Every pass computes one query, which meets the t keys up to its own.

    Args:
        prompt, generated, width, num_layers: see ``attention_work_naive``.
        with_prefill: count the queries of the prompt before its last token too, which meet what they see:
            4 width (prompt - 1) prompt / 2 a layer.

    Raises:
        ValueError: an argument is out of its range.
    """
    _check(prompt, generated, width, num_layers)
    meetings = visible_positions(generated, prompt - 1)
    if with_prefill:
        meetings += visible_positions(prompt - 1, 0)
    return FLOPS_PER_MEETING * width * num_layers * meetings


def _check(prompt: int, generated: int, width: int, num_layers: int) -> None:
    check_count("prompt", prompt)
    check_count("generated", generated, least=0)
    check_count("width", width)
    check_count("num_layers", num_layers)
