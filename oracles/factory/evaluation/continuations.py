"""What an oracle writes after a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from specdec.contracts import Oracle
from specdec.engine import SpeculativeDecoder
from specdec.sampling import SamplingParams

GREEDY = SamplingParams()
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)
OWN_TEXT = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Continuation:
    """What was written after a prompt, as ids; the prompt has at least one."""

    prompt: tuple[int, ...]
    new: tuple[int, ...]


def write(
    oracle: Oracle,
    prompts: Sequence[tuple[int, ...]],
    sampling: SamplingParams | Sequence[SamplingParams],
    num_tokens: int,
    batch_size: int = 8,
    seed: int = 0,
) -> list[Continuation]:
    """Return plain decoding's continuations of all prompts, with a progress bar.

    Args:
        oracle: what writes.
        prompts: ids, at least one each.
        sampling: of all of them, or of each.
        num_tokens: to write after each; an end-of-text id, which is kept, ends a text earlier.
        batch_size: prompts decoded together.
        seed: of all draws.

    Guarantee: a continuation depends on its own prompt and place only, not on the batch.
    """
    decoder = SpeculativeDecoder(oracle, None)
    ways = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    found = []
    for first in tqdm(range(0, len(prompts), 4 * batch_size), desc="writing", unit="batch"):
        rows = range(first, min(first + 4 * batch_size, len(prompts)))
        part, seeds = [list(prompts[row]) for row in rows], [(seed, row) for row in rows]
        own = [ways[row] for row in rows]
        result = decoder.generate(part, num_tokens, sampling=own, seed=seeds, batch_size=batch_size)
        found += [Continuation(prompts[row], tuple(new)) for row, new in zip(rows, result.tokens, strict=True)]
    return found
