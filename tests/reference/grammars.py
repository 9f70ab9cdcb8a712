"""The law of an output under a grammar, prefix by prefix: a matcher that has read nothing before, a mask, a sum."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from tests.reference.tables import Floats, law_after
from tests.reference.warping import filtered, penalised

FILTERS = tuple(inspect.signature(filtered).parameters)[1:]


def mask_after(tokenizer: LLTokenizer, grammar: str, output: Sequence[int]) -> tuple[list[bool], bool]:
    """Return which ids of the tokenizer may follow an output, and whether it is finished: nothing but an end may."""
    matcher = LLMatcher(tokenizer, grammar)
    assert all(matcher.consume_token(token) for token in output), matcher.get_error()
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    if matcher.is_error():
        return [False] * tokenizer.vocab_size, False
    mask = [bool(bit) for bit in bits[: tokenizer.vocab_size]]
    goes_on = any(ok for token, ok in enumerate(mask) if token not in tokenizer.eos_tokens)
    return mask, not goes_on


def masked_law(
    table: Floats, tokenizer: LLTokenizer, grammar: str, prompt: Sequence[int], length: int, **sampling: Any
) -> dict[tuple[int, ...], float]:
    """Return ``{ids: probability}`` of the outputs of a table's model: each law masked, then warped.

    Args:
        table: of the model; ids of the tokenizer beyond its width are never written.
        tokenizer: with the ids that end an output.
        grammar: as the library's ``grammar_from_*`` give it.
        prompt: ids.
        length: of an output that nothing ends.
        sampling: the names of ``filtered`` and of ``penalised``.
    """
    warping = {name: value for name, value in sampling.items() if name in FILTERS}
    penalties = {name: value for name, value in sampling.items() if name not in FILTERS}
    size, ends = table.shape[-1], tokenizer.eos_tokens
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    done: dict[tuple[int, ...], float] = {}
    for _ in range(length):
        grown: dict[tuple[int, ...], float] = {}
        for output, mass in open_.items():
            mask, _ = mask_after(tokenizer, grammar, output)
            probs = law_after(table, (*prompt, *output))
            logits = [math.log(p) if ok and p > 0 else -math.inf for p, ok in zip(probs, mask[:size], strict=True)]
            logits = penalised(logits, prompt, output, [one for one in ends if one < size], **penalties)
            for token, p in enumerate(filtered(logits, **warping)):
                if p > 0:
                    longer = (*output, token)
                    has_ended = token in ends or mask_after(tokenizer, grammar, longer)[1]
                    (done if has_ended else grown)[longer] = mass * float(p)
        open_ = grown
    return {**done, **open_}
