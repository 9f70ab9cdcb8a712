"""Every source whose law is enumerated, with the oracle that it drafts for."""

from drafts import Eagle3, EarlyExit, Lookahead, Merged, NGram, PromptLookup, Quantized, SmallTransformer, Staged
from oracles.tabular import TabularLM
from specdec import Grown, Kary, Paths, SamplingParams, Threshold
from specdec.contracts import DraftSource, Oracle
from tests.reference.tables import random_table
from tests.support.draft_rows import StopBelow
from tests.support.eagle3_heads import host_of, tiny_eagle3
from tests.support.registry import ENUMERATED, POLICIES, SMALL_SHAPES, THREE_IDS, temperature_of

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET = TabularLM(random_table(3, 2, 21))
MODEL, OTHER, LAYERED, NGRAMS = THREE_IDS.model, THREE_IDS.other, THREE_IDS.layered, THREE_IDS.ngrams
VIEW = THREE_IDS.view
LENGTHS = {name: short for name, (_, short) in POLICIES.items()}
SOURCES = {
    **ENUMERATED,
    "lookup that wraps": PromptLookup(2, wrap=True),
    "sampled ngram": NGram(NGRAMS, 2, sampled=True),
    "ngram, tree": NGram(NGRAMS, tree=Paths([(0, 0), (1,)])),
    "sampled ngram, grown": NGram(NGRAMS, sampled=True, tree=Grown(3, 2)),
    "hot model": SmallTransformer(MODEL, 2, temperature=2.0),
    "greedy model": SmallTransformer(MODEL, 2, temperature=0),
    "model, own length": SmallTransformer(MODEL, length=StopBelow(0.4, max_depth=2)),
    "greedy model, binary tree": SmallTransformer(MODEL, tree=Kary(2, 2), temperature=0),
    "hot early exit": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=2.0),
    "greedy early exit": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=0),
    "early exit, own length": EarlyExit(LAYERED, 1, length=StopBelow(0.4, max_depth=2)),
    "hot head": Eagle3(tiny_eagle3(LAYERED), 2, temperature=2.0),
    "greedy head, re-ranked": Eagle3(tiny_eagle3(LAYERED), tree=SMALL_SHAPES["ReRanked"], temperature=0),
    "head, own length": Eagle3(tiny_eagle3(LAYERED), length=StopBelow(0.4, max_depth=2)),
    "head after a lookup": Merged([PromptLookup(1), Eagle3(tiny_eagle3(LAYERED), 1)]),
    "hot view": Quantized(LAYERED, VIEW, 2, temperature=2.0),
    "greedy view": Quantized(LAYERED, VIEW, 2, temperature=0),
    **{f"view, {name}": Quantized(LAYERED, VIEW, length=length) for name, length in LENGTHS.items()},
    "small lookahead": Lookahead(window=2, ngram=3, guesses=2),
    "lookahead, window alone": Lookahead(window=3, ngram=2, guesses=3, pool_size=4, from_prompt=False),
    "staged, one inside": Staged(MODEL, NGram(NGRAMS, 1), 2),
    "staged, drawn inside": Staged(MODEL, SmallTransformer(OTHER, 1), 2),
    "staged, own length": Staged(MODEL, PromptLookup(1), length=StopBelow(0.4, max_depth=2)),
    "staged, heuristic length": Staged(MODEL, PromptLookup(1), length=LENGTHS["heuristic"]),
    "staged twice": Staged(MODEL, Staged(OTHER, NGram(NGRAMS, 1), 1), 2),
    "staged with siblings": Staged(MODEL, NGram(NGRAMS, 1), 1, width=2),
    "staged, greedy": Staged(MODEL, SmallTransformer(OTHER, 1), 2, temperature=0),
    "two models merged": Merged([SmallTransformer(MODEL, 1), SmallTransformer(OTHER, 1)]),
    "merged, drawn and chosen": Merged([SmallTransformer(MODEL, 1), NGram(NGRAMS, 2)]),
    **{f"model, {name}": SmallTransformer(MODEL, length=length) for name, length in LENGTHS.items()},
    "sampled ngram, entropy": NGram(NGRAMS, sampled=True, length=LENGTHS["entropy"]),
    "ngram, entropy": NGram(NGRAMS, length=LENGTHS["entropy"]),
    "lookup, threshold": PromptLookup(wrap=True, length=Threshold(threshold=0.45, max_draft_tokens=2)),
    **{
        f"model, {name}": SmallTransformer(MODEL, tree=shape, temperature=temperature_of(shape))
        for name, shape in SMALL_SHAPES.items()
    },
}
PENALTIES = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5)


def target_of(source: DraftSource) -> Oracle:
    """Return the oracle to decode with: a source's own, if it drafts on its cache or reads its layers."""
    return host_of(source, TARGET)
