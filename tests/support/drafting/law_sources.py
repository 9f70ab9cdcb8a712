"""Every source whose law is enumerated, with the oracle that it drafts for."""

from drafts import Eagle3, EarlyExit, Lookahead, Merged, NGram, PromptLookup, Quantized, SmallTransformer, Staged
from oracles.tabular import TabularLM
from specdec import Grown, Kary, Paths, SamplingParams, Threshold
from specdec.contracts import DraftSource, Oracle
from tests.reference.tables import random_table
from tests.support.drafting.draft_rows import StopBelow
from tests.support.models.eagle3_heads import host_of, tiny_eagle3
from tests.support.registry import ENUMERATED, POLICIES, SMALL_SHAPES, THREE_IDS, temperature_of

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET = TabularLM(random_table(3, 2, 21))
MODEL, OTHER, LAYERED, NGRAMS = THREE_IDS.model, THREE_IDS.other, THREE_IDS.layered, THREE_IDS.ngrams
VIEW = THREE_IDS.view
LENGTHS = {name: short for name, (_, short) in POLICIES.items()}
# A name tells the parts: a row of the registry, then what is asked of its source.
SOURCES = {
    **ENUMERATED,
    "PromptLookup, wrapping": PromptLookup(2, wrap=True),
    "NGram, sampled": NGram(NGRAMS, 2, sampled=True),
    "NGram, Paths": NGram(NGRAMS, tree=Paths([(0, 0), (1,)])),
    "NGram, sampled, Grown": NGram(NGRAMS, sampled=True, tree=Grown(3, 2)),
    "SmallTransformer, hot": SmallTransformer(MODEL, 2, temperature=2.0),
    "SmallTransformer, greedy": SmallTransformer(MODEL, 2, temperature=0),
    "SmallTransformer, own length": SmallTransformer(MODEL, length=StopBelow(0.4, max_depth=2)),
    "SmallTransformer, greedy, Kary": SmallTransformer(MODEL, tree=Kary(2, 2), temperature=0),
    "EarlyExit, hot": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=2.0),
    "EarlyExit, greedy": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=0),
    "EarlyExit, own length": EarlyExit(LAYERED, 1, length=StopBelow(0.4, max_depth=2)),
    "Eagle3, hot": Eagle3(tiny_eagle3(LAYERED), 2, temperature=2.0),
    "Eagle3, greedy, ReRanked": Eagle3(tiny_eagle3(LAYERED), tree=SMALL_SHAPES["ReRanked"], temperature=0),
    "Eagle3, own length": Eagle3(tiny_eagle3(LAYERED), length=StopBelow(0.4, max_depth=2)),
    "Merged, lookup and head": Merged([PromptLookup(1), Eagle3(tiny_eagle3(LAYERED), 1)]),
    "Quantized, hot": Quantized(LAYERED, VIEW, 2, temperature=2.0),
    "Quantized, greedy": Quantized(LAYERED, VIEW, 2, temperature=0),
    **{f"Quantized, {name}": Quantized(LAYERED, VIEW, length=length) for name, length in LENGTHS.items()},
    "Lookahead, small": Lookahead(window=2, ngram=3, guesses=2),
    "Lookahead, window alone": Lookahead(window=3, ngram=2, guesses=3, pool_size=4, from_prompt=False),
    "Staged, one inside": Staged(MODEL, NGram(NGRAMS, 1), 2),
    "Staged, drawn inside": Staged(MODEL, SmallTransformer(OTHER, 1), 2),
    "Staged, own length": Staged(MODEL, PromptLookup(1), length=StopBelow(0.4, max_depth=2)),
    "Staged, heuristic": Staged(MODEL, PromptLookup(1), length=LENGTHS["heuristic"]),
    "Staged, twice": Staged(MODEL, Staged(OTHER, NGram(NGRAMS, 1), 1), 2),
    "Staged, siblings": Staged(MODEL, NGram(NGRAMS, 1), 1, width=2),
    "Staged, greedy": Staged(MODEL, SmallTransformer(OTHER, 1), 2, temperature=0),
    "Merged, two models": Merged([SmallTransformer(MODEL, 1), SmallTransformer(OTHER, 1)]),
    "Merged, drawn and chosen": Merged([SmallTransformer(MODEL, 1), NGram(NGRAMS, 2)]),
    **{f"SmallTransformer, {name}": SmallTransformer(MODEL, length=length) for name, length in LENGTHS.items()},
    "NGram, sampled, entropy": NGram(NGRAMS, sampled=True, length=LENGTHS["entropy"]),
    "NGram, entropy": NGram(NGRAMS, length=LENGTHS["entropy"]),
    "PromptLookup, wrapping, constant": PromptLookup(wrap=True, length=Threshold(threshold=0.45, max_draft_tokens=2)),
    **{
        f"SmallTransformer, {name}": SmallTransformer(MODEL, tree=shape, temperature=temperature_of(shape))
        for name, shape in SMALL_SHAPES.items()
    },
}
PENALTIES = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5)


def target_of(source: DraftSource) -> Oracle:
    """Return the oracle to decode with: a source's own, if it drafts on its cache or reads its layers."""
    return host_of(source, TARGET)
