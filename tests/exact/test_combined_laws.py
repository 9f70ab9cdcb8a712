"""Trees of several sources keep the oracle's law under every rule that judges trees."""

import pytest

from drafts import Cascade, Merged, NGram, PromptLookup, SmallTransformer, Staged
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.exact.sources import RandomTrees, SiblingTrees
from tests.reference.tables import random_table

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET, FIRST, SECOND = (TabularLM(random_table(3, 2, seed)) for seed in (71, 72, 73))
TREES = [SiblingTrees(random_table(3, 2, seed), max_nodes=2) for seed in (74, 75)]
NGRAMS = NGram.train([[0, 1, 2, 0, 1, 1, 2, 0, 2, 2, 1, 0]], 3, 3, progress=False).model
SOURCES = {
    "two models": Merged([SmallTransformer(FIRST, 1), SmallTransformer(SECOND, 2)]),
    "chosen, then drawn": Merged([NGram(NGRAMS, 2), SmallTransformer(FIRST, 1)]),
    "drawn, then chosen": Merged([SmallTransformer(FIRST, 2), NGram(NGRAMS, 2), PromptLookup(2)]),
    "siblings of two sources": Merged(TREES),
    "siblings and independent draws": Merged([RandomTrees(random_table(3, 2, 76), max_nodes=2), TREES[0]]),
    "staged siblings and a model": Merged([Staged(FIRST, PromptLookup(1), 1, width=2), SmallTransformer(SECOND, 1)]),
    "nested": Merged([SmallTransformer(FIRST, 1), Merged([TREES[1], NGram(NGRAMS, 1)])]),
    "cascade of trees": Cascade([PromptLookup(2, min_ngram=2), TREES[0]]),
    "staged siblings": Staged(FIRST, SmallTransformer(SECOND, 1), 2, width=2),
}
SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5),
}


@pytest.mark.parametrize(
    ("rule", "sampling"), [("multi_draft", "plain"), ("multi_draft", "penalties"), ("sample_and_match", "penalties")]
)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_output_law_is_the_oracles(source, rule, sampling):
    check_lossless(SpeculativeDecoder(TARGET, source, rule), PROMPT, 3, SAMPLINGS[sampling], mates=MATES)
