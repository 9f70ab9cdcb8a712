"""The long version of the enumerations: more tables, longer blocks, deeper trees (``make exactness``)."""

import pytest

from drafts import SmallTransformer
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.exact.test_engine_law import SAMPLINGS
from tests.reference.tables import random_table
from tests.support.models import tiny_transformer
from tests.support.sources import RandomTrees

pytestmark = pytest.mark.long
MATES = [[0], [1, 2, 0, 1], [2, 2, 1]]


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("seed", range(4))
def test_four_tokens_of_random_tables(seed, name):
    sampling = SAMPLINGS[name]
    # Where the table has zeros, banning an id may leave none.
    zeros = 0.2 * (seed % 2) * (name != "ban")
    target = TabularLM(random_table(3, 2, 300 + seed, zeros=zeros), eos_id=seed if seed < 3 else None)
    model = TabularLM(random_table(3, 2, 400 + seed, zeros=0.2 * (seed > 1)))
    for source, rule in ((SmallTransformer(model, 2), "standard"), (RandomTrees(random_table(3, 2, seed)), None)):
        decoder = SpeculativeDecoder(target, source, rule or "sample_and_match")
        check_lossless(decoder, [seed % 3, 1], 4, sampling, mates=MATES, max_leaves=200_000)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_longer_blocks_than_the_sequence_has_room_for(num_draft_tokens):
    target, model = TabularLM.pair(3, 2, 0.6, seed=7)
    decoder = SpeculativeDecoder(target, SmallTransformer(model, num_draft_tokens))
    check_lossless(decoder, [1, 2], 5, mates=MATES, max_leaves=200_000)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("shape", [{}, {"sliding_window": 3}], ids=("full", "window"))
def test_deep_trees_and_four_tokens_through_the_real_cache(shape, temperature):
    source = RandomTrees(random_table(4, 2, 51), max_nodes=3)
    decoder = SpeculativeDecoder(tiny_transformer(**shape), source, "sample_and_match")
    sampling = SamplingParams(temperature=temperature, top_k=3)
    check_lossless(decoder, [3, 1], 4, sampling, mates=MATES, batch_size=500, max_leaves=200_000)
