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
    sampling: SamplingParams,
    num_tokens: int,
    batch_size: int = 8,
) -> list[Continuation]:
    """Return plain decoding's continuations of all prompts, with a progress bar.

    Args:
        oracle: what writes.
        prompts: ids, at least one each.
        sampling: of all of them.
        num_tokens: to write after each; an end-of-text id, which is kept, ends a text before.
        batch_size: prompts decoded together.

    Guarantee: a continuation depends on its own prompt and place only, not on the batch.
    """
    decoder = SpeculativeDecoder(oracle, None)
    found = []
    for first in tqdm(range(0, len(prompts), batch_size), desc="writing", unit="batch"):
        part = prompts[first : first + batch_size]
        seeds = [(0, first + i) for i in range(len(part))]
        result = decoder.generate([list(prompt) for prompt in part], num_tokens, sampling=sampling, seed=seeds)
        found += [Continuation(prompt, tuple(new)) for prompt, new in zip(part, result.tokens, strict=True)]
    return found
