"""The n-gram model has the numbers of its formula, written out slowly."""

import numpy as np
import pytest

from drafts import NGram
from drafts.ngram import NGramModel
from tests.reference.ngrams import ScalarNGram
from tests.support.drafting.draft_rows import draft_of

generator = np.random.default_rng(11)
SKEWED = [np.minimum(generator.geometric(0.4, n) - 1, 5).tolist() for n in (40, 1, 25, 2, 60, 3)]
CONTEXTS = [generator.integers(0, 6, n).tolist() for n in (1, 1, 2, 2, 3, 3, 4, 5, 9, 9, 9, 9)] + SKEWED


def recent(context: list[int], width: int) -> list[int]:
    return (context[::-1] + [-1] * width)[:width]


@pytest.mark.parametrize("discount", [None, 0.4])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_laws_are_the_formulas(order, discount):
    model = NGramModel.train(SKEWED, 6, order, discount=discount, progress=False)
    slow = ScalarNGram(SKEWED, 6, order, discount)
    rows = np.array([recent(context, order - 1) for context in CONTEXTS], dtype=np.int64)
    laws = model.laws(model.states(rows.reshape(len(CONTEXTS), order - 1)))
    np.testing.assert_allclose(laws, [slow.law(tuple(context)) for context in CONTEXTS], rtol=1e-12, atol=0)
    np.testing.assert_allclose(laws.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("sequence", [[0, 1, 2, 3], [0, 1, 2] * 9], ids=["all once", "none once"])
def test_discounts_are_bounded_so_that_every_id_stays_possible(sequence):
    law = NGramModel.train([sequence], 6, 1, progress=False).laws(np.array([0]))[0]
    np.testing.assert_allclose(law, ScalarNGram([sequence], 6, 1).law(()), rtol=1e-12)
    assert law[5] > 0
    assert law[0] > law[5]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_greedy_chains_follow_the_likeliest_id(order):
    slow = ScalarNGram(SKEWED, 6, order)
    wanted = []
    for context in CONTEXTS:
        chain = list(context)
        for _ in range(6):
            law = slow.law(tuple(chain))
            chain.append(law.index(max(law)))
        wanted.append(chain[len(context) :])
    assert draft_of(NGram.train(SKEWED, 6, order, progress=False, num_draft_tokens=6), CONTEXTS) == wanted


def test_a_best_id_that_the_context_has_not_seen_comes_from_the_shorter_one():
    # After 1 came once 2, which is rare; 0 is frequent everywhere, and the discount is large.
    ids = [0] * 30 + [1, 2] + [0] * 30
    model = NGramModel.train([ids], 3, 2, discount=0.9, progress=False)
    state = model.states(np.array([[1]]))
    assert model.laws(state)[0].argmax() == 0
    assert model.best[state] == 0
    assert model.best_probs[state] == pytest.approx(model.laws(state).max(), rel=1e-12)


def test_ids_far_apart_in_a_large_vocabulary_do_not_collide():
    big = 200_000
    sequence = [big - 1, 0, big - 1, 1, 0, big - 1, 7] * 3
    slow = ScalarNGram([sequence], big, 4)
    model = NGramModel.train([sequence], big, 4, progress=False)
    for context in ([big - 1, 0], [1, 0, big - 1], [7, 7], [0]):
        law = model.laws(model.states(np.array([recent(context, 3)])))[0]
        for token in (0, 1, 7, big - 1, 5):
            assert law[token] == pytest.approx(slow.prob(token, tuple(context)), rel=1e-12)
