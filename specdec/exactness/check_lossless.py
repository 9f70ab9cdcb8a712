"""A decoder's promise as one line of a test: its output law is the oracle's."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from specdec.engine import SpeculativeDecoder
from specdec.exactness.oracle_law import oracle_law
from specdec.exactness.output_law import JointLaw, Law, output_law
from specdec.exactness.sampled_law import check_by_samples
from specdec.requests import Prompt, Stop
from specdec.sampling import SamplingParams
from specdec.theory import check_count

_WORST = 8


def total_variation(first: Law | JointLaw, second: Law | JointLaw) -> float:
    """Return half the sum of absolute differences of two laws over sequences, or over sequences of several rows."""
    one, other = (defaultdict(float, law.items()) for law in (first, second))
    return sum(abs(one[ids] - other[ids]) for ids in {*one, *other}) / 2


def _law_table(made: Law, wanted: Law) -> str:
    """Return the sequences on which two laws differ most."""
    worst = sorted({*made, *wanted}, key=lambda ids: -abs(made.get(ids, 0.0) - wanted.get(ids, 0.0)))[:_WORST]
    lines = [f"{'decoder':>22} {'oracle':>22}  ids"]
    return "\n".join([*lines, *(f"{made.get(i, 0.0):22.16f} {wanted.get(i, 0.0):22.16f}  {list(i)}" for i in worst)])


def check_lossless(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    max_new_tokens: int | None = None,
    sampling: SamplingParams | None = None,
    *,
    depth: int | None = None,
    stop: Stop | Sequence[Stop] | None = None,
    mates: Sequence[Prompt] = (),
    batch_size: int | None = None,
    tolerance: float | None = None,
    max_leaves: int = 20_000,
    num_seeds: int = 32,
    effect: float | None = None,
    level: float = 1e-6,
    seed: int = 0,
) -> None:
    """Check that a decoder's output law is its oracle's: by enumeration, by samples, or in coupled mode by tokens.

    Args:
        decoder: with a small vocabulary (3 or 4 ids), so that its law can be enumerated; with an ``effect``, or in
            coupled mode, any decoder.
        prompt: of the request that is looked at.
        max_new_tokens: length of the sequences; None: depth + 1, the least in which a step can draft that many tokens.
        depth: how many drafted tokens of one step the check must reach; None: as many as the draft offers. Give less to
            say that less is enough.
        sampling: None is temperature 1 here: greedy decoding would show little.
        stop: as for ``generate``.
        mates: prompts that run in the same batch.
        batch_size: rows in flight; None: all, by samples 64.
        tolerance: largest total variation by enumeration; None: 1e-12 for a float64 oracle, else 1e-5 (float32 laws).
        max_leaves: bound on the enumeration.
        num_seeds: requests compared in coupled mode.
        effect: test samples instead of enumerating, enough to see this total variation with probability 0.99: for any
            oracle, through its real cache. 0.05 takes about 13,000 requests, 0.1 a quarter of that. Not in coupled
            mode, which compares tokens.
        level: bound on the probability of a false alarm of that test. A suite of n such tests, each at a rate / n,
            fails wrongly with at most that rate.
        seed: of its requests.

    Raises:
        AssertionError: with the sequences whose probabilities differ most, or the requests whose ids do. By samples:
            with the cells that are furthest off, or the first output that the oracle cannot write.
        ValueError: ``max_new_tokens`` does not reach ``depth``, or that is negative; more branches than ``max_leaves``;
            an ``effect`` or ``level`` that is not between 0 and 1; less than one seed to compare.

    Guarantee: what n new tokens show is seen: a step drafts up to n - 1 of them. A fault that begins at a later drafted
        token, or in a later step, is not seen. By samples, outputs are sorted into about 16 cells, each all outputs
        that begin with some ids, the likeliest beginnings first; their probabilities are the oracle's own, each from a
        pass over the whole text. The total variation is that of the law of the cells: a bias among outputs of one cell
        is not seen.
    Cost: see ``output_law`` and ``oracle_law``; by samples the requests, and one pass a cell.
    """
    max_new_tokens = _length(decoder, max_new_tokens, depth)
    sampling = SamplingParams(temperature=1.0) if sampling is None else sampling
    if decoder.rule.coupled:
        check_count("num_seeds", num_seeds)
        _check_equal_tokens(decoder, [*[prompt] * num_seeds, *mates], max_new_tokens, sampling, stop, batch_size)
        return
    if effect is not None:
        check_by_samples(decoder, prompt, max_new_tokens, sampling, stop, mates, batch_size, effect, level, seed)
        return
    options: dict[str, Any] = {"mates": mates, "batch_size": batch_size, "max_leaves": max_leaves}
    made = output_law(decoder, prompt, max_new_tokens, sampling, stop=stop, **options)
    wanted = oracle_law(decoder.oracle, prompt, max_new_tokens, sampling, stop=stop)
    if tolerance is None:
        tolerance = 1e-12 if decoder.oracle.dtype.itemsize == 8 else 1e-5
    distance = total_variation(made, wanted)
    if distance > tolerance:
        raise AssertionError(
            f"the output law is off by a total variation of {distance:.3g} (allowed: {tolerance:.3g}), rule "
            f"{decoder.rule.name!r}, source {decoder.draft.name!r}\n{_law_table(made, wanted)}"
        )


def _length(decoder: SpeculativeDecoder, max_new_tokens: int | None, depth: int | None) -> int:
    """Return how long sequences are: long enough for one step to draft ``depth`` tokens.

    Raises:
        ValueError: they are asked to be shorter, or ``depth`` is negative.
    """
    if depth is not None and depth < 0:
        raise ValueError(f"depth={depth} compares nothing: give 0 or more, or None for as many as the draft offers")
    offered = decoder.offers.max_depth
    wanted = offered if depth is None else depth
    length = wanted + 1 if max_new_tokens is None else max_new_tokens
    if length <= wanted:
        drafted, name = max(length - 1, 0), decoder.draft.name
        raise ValueError(
            f"max_new_tokens={length} lets a step draft {drafted} tokens, draft {name!r} offers {offered}, and a fault "
            f"from token {length} of a draft on would not be seen: give max_new_tokens={wanted + 1}, a shorter draft, "
            f"or depth={drafted} if that is enough"
        )
    return length


def _check_equal_tokens(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    sampling: SamplingParams,
    stop: Stop | Sequence[Stop] | None,
    batch_size: int | None,
) -> None:
    """Raise AssertionError if coupled output differs from that of plain decoding with the same seeds."""
    plain = SpeculativeDecoder(decoder.oracle, None, decoder.rule, kernels=decoder.kernels.name)
    made, wanted = (
        one.generate(prompts, max_new_tokens, sampling, 0, stop, batch_size).tokens for one in (decoder, plain)
    )
    lines = [f"  request {i}: {a} instead of {b}" for i, (a, b) in enumerate(zip(made, wanted, strict=True)) if a != b]
    if lines:
        raise AssertionError("\n".join([f"{len(lines)} of {len(prompts)} coupled requests differ from plain", *lines]))
