"""What beside a transformer predicts text: an n-gram model; xz is in tests/figures/of_benchmarks.py."""

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from oracles.factory.evaluation.ngrams import contexts, ngram_bits_per_byte, ngram_logits
from oracles.factory.train import TOKENIZER
from specdec.drafting import NGramModel
from tests.reference.ngrams import ScalarNGram

CODE = Tokenizer.from_file(str(TOKENIZER))
TRAIN = ["def f(x):\n    return x\n", "def g(x, y):\n    return f(x) + y\n"]
TEXTS = ["def h(y):\n    return g(y, y)\n", "x"]


def test_contexts_are_the_latest_ids_after_every_prefix():
    assert contexts([5, 6, 7], 2).tolist() == [[-1, -1], [5, -1], [6, 5], [7, 6]]
    assert contexts([5, 6, 7], 0).shape == (4, 0)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_logits_are_the_models_laws_after_every_prefix(order):
    sequences = np.random.default_rng(2).integers(0, 5, (6, 30)).tolist()
    model = NGramModel.train(sequences, 5, order, progress=False)
    slow, rows = ScalarNGram(sequences, 5, order), torch.tensor([[0, 1, 1, 4, 2], [3, 3, 3, 0, 1]])
    laws = ngram_logits(model, rows).softmax(-1)
    expected = [[slow.law(tuple(row[: i + 1])) for i in range(5)] for row in rows.tolist()]
    torch.testing.assert_close(laws, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_bits_per_byte_of_an_ngram_model_are_those_of_its_formula(monkeypatch):
    monkeypatch.setattr("oracles.factory.evaluation.ngrams.LAWS_AT_ONCE", 3)
    size = CODE.get_vocab_size()
    slow = ScalarNGram([CODE.encode(text).ids for text in TRAIN], size, 5)
    nats = 0.0
    for text in TEXTS:
        ids = CODE.encode(text).ids
        nats -= sum(math.log(slow.prob(token, tuple(ids[:at]))) for at, token in enumerate(ids))
    model = NGramModel.train(TRAIN, size, 5, CODE, progress=False)
    expected = nats / math.log(2) / sum(len(text) for text in TEXTS)
    assert ngram_bits_per_byte(model, CODE, TEXTS) == pytest.approx(expected, rel=1e-12)
