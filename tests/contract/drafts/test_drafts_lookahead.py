"""Lookahead's counts, budgets and pool; what its drafts are is held by tests/equivalence/test_lookahead.py."""

import numpy as np
import pytest
import torch

from drafts import Lookahead
from drafts.lookahead import NGramPool, _Session
from oracles.tabular import TabularLM
from specdec import SpeculativeDecoder
from specdec.contracts import Budget, Draft, Needs, Scores
from tests.support.drafting.draft_rows import Rows

PROMPT = [0, 1, 2, 0, 1, 3, 0, 1, 4, 0, 1, 5, 0]
SETTINGS = [(5, 3, 5), (3, 5, 3), (4, 2, 2), (1, 4, 2), (0, 3, 4)]


def propose(source: Lookahead, depth: list[int], nodes: list[int]) -> Draft:
    """Return the first drafts of rows that all hold the same ids."""
    rows = Rows(source, len(depth))
    rows.seat(dict.fromkeys(range(len(depth)), PROMPT))
    every = np.arange(len(depth))
    return rows.session.propose(every, rows.context(every), Budget(np.array(depth), np.array(nodes)), None)


def counts(draft: Draft) -> list[tuple[int, int]]:
    """Return the numbers of verified nodes and of scouts of each row."""
    real = torch.arange(draft.width) < draft.num_nodes.unsqueeze(1)
    verified, scouts = (real & ~draft.is_scout).sum(1), (real & draft.is_scout).sum(1)
    return list(zip(verified.tolist(), scouts.tolist(), strict=True))


@pytest.mark.parametrize(("window", "ngram", "guesses"), SETTINGS)
def test_a_pass_holds_at_most_w_plus_g_times_n_minus_one_nodes(window, ngram, guesses):
    """A full window is W (N - 1) scoring nodes, of which the pending token is one; guesses are at most G (N - 1)."""
    source = Lookahead(window, ngram, guesses)
    decoder = SpeculativeDecoder(TabularLM.random(6, 2, 0), source, "multi_draft")
    records = decoder.generate([PROMPT, PROMPT[:4]], 60).records
    full = [row for row in records if row["num_committed"] + source.offers.max_depth < len(PROMPT[:4]) + 60]
    assert len(full) > 20
    assert {row["num_scouts"] for row in full} == {max(window * (ngram - 1) - 1, 0)}
    assert 0 < max(row["num_drafted"] for row in records) <= guesses * (ngram - 1)
    assert max(row["num_nodes"] for row in records) <= (window + guesses) * (ngram - 1) + (window == 0)
    stats = decoder.generate([PROMPT], 60).stats
    assert stats.num_scored_nodes == stats.num_drafted + stats.num_scouts + stats.num_steps


def test_guesses_take_a_short_budget_first_and_the_window_keeps_the_columns_that_fit():
    source = Lookahead(window=4, ngram=3, guesses=2)
    # Of three n-grams behind the pending 0 the newest two, [1, 5] and [1, 4], share their first node.
    assert counts(propose(source, [9], [9])) == [(3, 5)]
    assert counts(propose(source, [9], [10])) == [(3, 7)]
    nodes = list(range(12))
    expected = [(min(n, 3), max(2 * min((max(n - 3, 0) + 1) // 2, 4) - 1, 0)) for n in nodes]
    assert counts(propose(source, [9] * 12, nodes)) == expected
    by_depth = [(0, 0), (1, 1), (3, 3), (3, 5), (3, 7), (3, 7)]
    assert counts(propose(source, list(range(6)), [99] * 6)) == by_depth
    assert counts(propose(source, [-1, 0, 9], [9, 9, -1])) == [(0, 0)] * 3


def test_an_empty_pool_guesses_nothing_and_the_window_goes_on():
    decoder = SpeculativeDecoder(TabularLM.random(6, 2, 0), Lookahead(pool_size=0), "multi_draft")
    stats = decoder.generate([PROMPT], 30).stats
    assert (stats.num_drafted, stats.block_efficiency) == (0, 1.0)
    assert stats.num_scouts > 200


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_the_pool_keeps_the_newest_distinct_ngrams(size):
    generator = np.random.default_rng(size)
    pool, lists = NGramPool(3, size, 3), [[], [], []]
    for _ in range(30):
        rows = np.sort(generator.choice(3, generator.integers(1, 4), replace=False))
        new = generator.integers(0, 3, (len(rows), generator.integers(0, 5), 3))
        new[generator.random(new.shape[:2]) < 0.2] = -1
        pool.add(rows, new)
        for row, ngrams in zip(rows, new.tolist(), strict=True):
            for ngram in ngrams:
                if ngram[0] >= 0:
                    lists[row] = [*(other for other in lists[row] if other != ngram), ngram][-size:]
        for first in range(3):
            found = pool.beginning_with(np.arange(3), np.full(3, first), 4)
            for row in range(3):
                wanted = [ngram[1:] for ngram in reversed(lists[row]) if ngram[0] == first][:4]
                assert found[row].tolist() == wanted + [[-1, -1]] * (4 - len(wanted))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 50])
def test_filling_the_pool_is_adding_the_text(length):
    text = np.random.default_rng(length).integers(0, 3, length)
    filled, added = NGramPool(1, 7, 3), NGramPool(1, 7, 3)
    filled.fill(0, text)
    for end in range(3, length + 1):
        added.add(np.array([0]), text[None, None, end - 3 : end])
    for first in range(3):
        pair = [pool.beginning_with(np.array([0]), np.array([first]), 9).tolist() for pool in (filled, added)]
        assert pair[0] == pair[1]
    filled.clear(np.array([0]))
    assert (filled.beginning_with(np.array([0]), np.array([text[0]]), 9) == -1).all()


def test_ids_that_were_taken_back_are_read_anew_and_without_scores_the_window_stands_still():
    rows = Rows(Lookahead(window=2, ngram=3, guesses=2))
    rows.seat({0: [5, 5, 5], 2: [1, 2]})
    window = rows.session.window.reshape(4, -1)[:, 1:].copy()  # without the place of the pending token
    rows.propose({0: 9, 2: 9})
    rows.settle({0: [0, 1, 2], 2: [0]})
    rows.propose({0: 9, 2: 9})
    rows.settle({0: [0, 1, 3, 0], 2: [0]}, keep={0: 2, 2: 1})
    draft = rows.propose({0: 9, 2: 9})
    assert rows.ids[0] == [5, 5, 0, 1, 3, 0]
    # Behind the pending 0 the pool has [1, 3], which stands, and [1, 2], which was taken back: a guess like any other.
    assert counts(draft)[0] == (3, 3)
    assert draft.tokens[0, :3].tolist() == [1, 3, 2]
    assert (rows.session.window.reshape(4, -1)[:, 1:] == window).all()


class Spy(TabularLM):
    """A table that notes what is asked of it."""

    wants: tuple[str, ...] = ()

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=()) -> Scores:
        self.wants = (*self.wants, want)
        return super().score(tokens, parents, num_nodes, cache, rows, want, hidden)


def test_the_logits_of_prompts_are_never_asked_for():
    oracle = Spy.random(6, 2, 0)
    stats = SpeculativeDecoder(oracle, Lookahead(), "multi_draft").generate([PROMPT, [1] * 300], 4).stats
    assert oracle.wants == ("none",) * stats.prefill_calls + ("all",) * stats.target_calls
    assert stats.prefill_calls == 3
    assert not Lookahead().needs.reads_prompts, "pages of prompts may be shared"


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_source_says_whether_its_sessions_begin_with_the_logits_of_prompts(is_wanted, monkeypatch):
    begun: list[Scores | None] = []
    source = Lookahead()
    source.needs = Needs(logits=True, prompt=is_wanted)
    monkeypatch.setattr(_Session, "begin", lambda self, rows, prompts, scores: begun.append(scores))
    oracle = TabularLM.random(6, 2, 0)
    SpeculativeDecoder(oracle, source, "multi_draft").generate([PROMPT], 1)
    if is_wanted:
        law = oracle.score(torch.tensor([PROMPT]), None, torch.tensor([13]), oracle.new_cache(1, 16), np.array([0]))
        assert torch.equal(begun[0].logits, law.logits[:, :-1])
    else:
        assert begun == [None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window must be an integer, 0 or more"),
        ({"ngram": 1}, "ngram must be an integer, 2 or more"),
        ({"guesses": 0}, "guesses must be an integer, 1 or more"),
        ({"pool_size": -1}, "pool_size must be an integer, 0 or more"),
        ({"window": 2.5}, "window must be an integer"),
    ],
)
def test_arguments_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Lookahead(**options)
