"""The text that a model learns on: the corpus, and for a pupil what its teacher wrote."""

from pathlib import Path

from safetensors.torch import load_file
from tokenizers import Tokenizer

from oracles.factory.corpus import read_split
from oracles.factory.training.windows import Mixed, WindowPlan, Windows, token_stream


def learning_text(plan: WindowPlan, tokenizer: Tokenizer, own_text: Path | None, seed: int) -> Windows | Mixed:
    """Return the windows of a run, and say how many tokens there are to read.

    Args:
        plan: their shape.
        tokenizer: of the model.
        own_text: file that ``oracles.factory.own_text`` wrote: half of every step is of it; None: the corpus alone.
        seed: of the order.
    """
    corpus = token_stream((source.text for source in read_split("train")), tokenizer)
    print(f"{len(corpus):,} tokens of the corpus", flush=True)
    if own_text is None:
        return Windows(plan, corpus, seed)
    own = load_file(own_text)["tokens"]
    print(f"{len(own):,} tokens of the oracle's own", flush=True)
    half = plan.halve()
    return Mixed(Windows(half, corpus, seed), Windows(half, own, seed))
