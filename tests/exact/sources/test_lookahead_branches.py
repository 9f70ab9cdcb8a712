"""Lookahead's window and guesses ride in one pass, and every node scores as its own chain does, bit for bit."""

import numpy as np
import pytest
import torch

from drafts import Lookahead
from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.reference.tables import random_table
from tests.support.backends import BITWISE_PACKS
from tests.support.drafting.lookahead_spy import SpiedLookahead, nodes_unlike_their_chains
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import pairwise

TABLE = random_table(3, 2, 21)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [0], [4, 4, 5, 4, 4, 5, 4]]


@pairwise(
    {
        "shape": {"full": {}, "window": {"sliding_window": 5}},
        "settings": {"wide": {"window": 5, "ngram": 3, "guesses": 4}, "default": {}},
        "pack": BITWISE_PACKS,
    }
)
def test_each_node_of_both_branches_scores_as_its_own_chain_bit_for_bit(shape, settings, pack):
    model = tiny_transformer(6, torch.float32, pack=pack, **shape)
    assert model.bitwise
    source = SpiedLookahead(**settings)
    wrong = nodes_unlike_their_chains(model, source, PROMPTS)
    paths = [path for seen in source.seen.values() for one in seen for path in one.paths]
    assert sum(scout for _, scout in paths) > 100
    assert sum(not scout for _, scout in paths) > 40
    assert len(wrong) == len(paths)
    assert not any(wrong)


@pytest.mark.parametrize("is_changed", ["window", "guesses"])
def test_neither_branch_feels_the_other(is_changed):
    """The same pass with other ids in one branch: the other one's logits, and the pending token's, stay bit for bit."""
    model, source = tiny_transformer(6, torch.float32), SpiedLookahead(window=4, ngram=4, guesses=4)
    SpeculativeDecoder(model, source, "multi_draft").generate(PROMPTS, 16)
    drafted = max(source.seen[tuple(PROMPTS[0])], key=lambda one: sum(not scout for _, scout in one.paths))
    paths = [[], *(path for path, _ in drafted.paths)]
    scouts = torch.tensor([False, *(scout for _, scout in drafted.paths)])
    chosen = scouts if is_changed == "window" else ~scouts
    chosen[0] = False
    assert 3 < int(chosen.sum()) < len(paths) - 4
    tokens = torch.tensor([drafted.ids[-1], *(path[-1] for path in paths[1:])])
    # A path may stand in both branches: the parent is looked for among the node's own.
    own = [[j for j in range(i) if scouts[j] == scouts[i] or j == 0] for i in range(len(paths))]
    parents = [-1] + [next(j for j in own[i] if paths[j] == paths[i][:-1]) for i in range(1, len(paths))]
    logits = []
    for other in (tokens, torch.where(chosen, (tokens + 1) % 6, tokens)):
        cache, row = model.new_cache(1, 64), np.array([0])
        prefix = torch.tensor([drafted.ids[:-1]])
        model.score(prefix, None, torch.tensor([prefix.shape[1]]), cache, row, "none")
        cache.commit(row, None, np.array([prefix.shape[1]]))
        size = torch.tensor([len(paths)])
        logits.append(model.score(other[None], torch.tensor([parents]), size, cache, row).logits[0])
    assert torch.equal(logits[0][~chosen], logits[1][~chosen])
    assert not any(torch.equal(logits[0][i], logits[1][i]) for i in chosen.nonzero().flatten())


def test_the_window_is_the_published_one():
    """Positions and ancestors of W = 5, N = 4 as the authors lay them out, the pending token in the first place."""
    source = SpiedLookahead(window=5, ngram=4, guesses=2, from_prompt=False)
    SpeculativeDecoder(tiny_transformer(6), source, "multi_draft").generate([list(range(6)) * 3], 16)
    paths = [path for path, scout in source.seen[tuple(range(6)) * 3][0].paths if scout]
    levels = [[[], *paths[:4]], paths[4:9], paths[9:]]
    assert [[len(path) for path in level] for level in levels] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6]]
    for column in range(5):
        assert column == 0 or levels[0][column][:-1] == levels[0][column - 1]
        assert [levels[level][column][:-1] for level in (1, 2)] == [levels[level][column] for level in (0, 1)]


@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match"])
def test_the_law_stands_where_guesses_branch(rule):
    """Behind this prompt the first draft has two guesses with two first ids, and both are entered."""
    prompt, sampling = [1, 2, 0, 1, 2, 2, 1, 0, 1, 2, 1], SamplingParams(temperature=1.0)
    decoder = SpeculativeDecoder(TabularLM(TABLE), Lookahead(window=2, ngram=3, guesses=2), rule)
    assert min(decoder.generate([prompt] * 64, 1 + 2, sampling).stats.accepted_at_rank) > 8
    check_lossless(decoder, prompt, 4, sampling, mates=[[0], [2, 2, 1], prompt[1:]])
