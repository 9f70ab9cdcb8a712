"""Greedy and coupled output of the embedded oracle is plain decoding's: 12 prompts, every source and every rule.

Long: the quick suite has recorded runs of this oracle (``tests/golden``), and every source under every rule on small
ones (``test_product``).
"""

import itertools
from functools import cache
from pathlib import Path

import pytest

import oracles
from drafts import EarlyExit, Lookahead, Merged, NGram, PromptLookup, Quantized, SmallTransformer, Staged
from specdec import RULES, Grown, Kary, SamplingParams, SpeculativeDecoder
from specdec.exactness import compare_runs
from specdec.prompts import load_prompts

PROMPTS = Path(__file__).parents[2] / "experiments" / "prompts" / "code.jsonl"
NEW = 24
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.2)


@cache
def _oracle():
    return oracles.load("code")


@cache
def _texts():
    return [prompt.text for prompt in load_prompts(str(PROMPTS), None, 12)]


@cache
def _plain(rule):
    """Return plain decoding at batch 1: greedy, or sampled in coupled mode."""
    sampling = PARAMS if rule == "coupled" else SamplingParams()
    return SpeculativeDecoder(_oracle(), None, rule).generate(_texts(), NEW, sampling, batch_size=1)


@cache
def _draft():
    return oracles.load("code-draft")


@cache
def _ngram():
    ids = [_oracle().tokenizer.encode(text).ids for text in _texts()]
    return NGram.train(ids, _oracle().vocab_size, 3, progress=False)


SOURCES = {
    "plain": lambda: None,
    "small transformer": lambda: SmallTransformer(_draft(), num_draft_tokens=4),
    "ngram": _ngram,
    "prompt lookup": lambda: PromptLookup(8),
    "early exit": lambda: EarlyExit(_oracle(), 3),
    "quantized": lambda: Quantized(_oracle(), oracles.load("code", weights="int8")),
    "lookahead": Lookahead,
    "tree": lambda: SmallTransformer(_draft(), tree=Kary(2, 3)),
    "grown tree": lambda: SmallTransformer(_draft(), tree=Grown(8, 4, width=3)),
    "merged": lambda: Merged([PromptLookup(5), _ngram()]),
    "staged tree": lambda: Staged(_draft(), PromptLookup(3), 4, width=2),
}
BRANCHING = ("lookahead", "tree", "grown tree", "merged", "staged tree")


def fits(name, rule):
    if name in BRANCHING:
        return rule in ("multi_draft", "coupled", "traversal")
    return name != "plain" or rule in ("standard", "coupled")


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize(("name", "rule"), [pair for pair in itertools.product(SOURCES, RULES) if fits(*pair)])
def test_tokens_are_those_of_plain_decoding_at_batch_one(name, rule, batch_size):
    sampling, wanted = (PARAMS, "coupled") if rule == "coupled" else (SamplingParams(), "standard")
    made = SpeculativeDecoder(_oracle(), SOURCES[name](), rule).generate(_texts(), NEW, sampling, batch_size=batch_size)
    assert made.exactness == ("exact" if RULES[rule].lossless else "lossy: typical(epsilon=0.09, delta=0.3)")
    if rule != "coupled":
        comparison = compare_runs(_oracle(), _texts(), made, _plain(wanted).tokens)
        assert comparison.identical, comparison.table()
    assert made.tokens == _plain(wanted).tokens
