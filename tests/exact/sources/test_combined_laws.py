"""Trees of several sources keep the oracle's law under every rule that judges trees."""

import pytest

from drafts import Cascade, Lookahead, Merged, NGram, PromptLookup, SmallTransformer, Staged
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.reference.tables import random_table
from tests.support.drafting.law_sources import MATES, MODEL, NGRAMS, OTHER, PENALTIES, PROMPT, TARGET
from tests.support.drafting.sources import RandomTrees, SiblingTrees

TREES = [SiblingTrees(random_table(3, 2, seed), max_nodes=2) for seed in (74, 75)]
# Beside the combinations of ``test_product``: trees as members, three members, nesting.
SOURCES = {
    "drawn, then chosen": Merged([SmallTransformer(MODEL, 2), NGram(NGRAMS, 2), PromptLookup(2)]),
    "siblings of two sources": Merged(TREES),
    "siblings and independent draws": Merged([RandomTrees(random_table(3, 2, 76), max_nodes=2), TREES[0]]),
    "staged siblings and a model": Merged([Staged(MODEL, PromptLookup(1), 1, width=2), SmallTransformer(OTHER, 1)]),
    "nested": Merged([SmallTransformer(MODEL, 1), Merged([TREES[1], NGram(NGRAMS, 1)])]),
    "nested, reading logits": Cascade(
        [PromptLookup(2, min_ngram=2), Merged([Lookahead(2, 2, 1), SmallTransformer(MODEL, 1)])]
    ),
    "cascade of trees": Cascade([PromptLookup(2, min_ngram=2), TREES[0]]),
    "staged siblings": Staged(MODEL, SmallTransformer(OTHER, 1), 2, width=2),
}


PLAIN = SamplingParams(temperature=1.0)


# How penalties meet a rule that reads laws is no combination's business: ``test_product`` has that.
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("multi_draft", PLAIN),
        pytest.param("multi_draft", PENALTIES, marks=pytest.mark.long),
        ("sample_and_match", PENALTIES),
    ],
)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_output_law_is_the_oracles(source, rule, sampling):
    check_lossless(SpeculativeDecoder(TARGET, source, rule), PROMPT, 3, sampling, depth=2, mates=MATES)
