"""Lookup, n-grams, functions and length policies: arguments, edges, files."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from drafts import Lookahead, NGram, PromptLookup, stateless
from drafts.ngram import NGramModel
from oracles.tabular import TabularLM
from specdec import SpeculativeDecoder
from specdec.contracts import Budget
from specdec.drafting.lengths import Entropy, Fixed, Threshold, depth_limits, resolve
from specdec.sampling import SamplingParams
from tests.support.drafting.draft_rows import Rows, StopBelow, chains, draft_of

CORPUS = [np.minimum(np.random.default_rng(i).geometric(0.4, 60) - 1, 5).tolist() for i in range(4)]


@pytest.mark.parametrize(
    ("arguments", "drafted"),
    [
        ({}, [4, 9, 1, 2]),
        ({"match": "first"}, [3, 5, 1, 2]),
        ({"max_ngram": 1, "match": "first"}, [3, 5, 1, 2]),
        ({"min_continuation": 5}, [3, 5, 1, 2]),
        ({"min_ngram": 3}, []),
    ],
    ids=str,
)
def test_the_arguments_of_a_lookup_decide_which_match_wins(arguments, drafted):
    assert draft_of(PromptLookup(4, **arguments), [[1, 2, 3, 5, 1, 2, 4, 9, 1, 2]]) == [drafted]


@pytest.mark.parametrize(("wrap", "drafted"), [(False, [3]), (True, [3, 3, 3, 3])])
def test_a_match_at_the_very_end_gives_few_tokens_or_wraps(wrap, drafted):
    assert draft_of(PromptLookup(4, wrap=wrap), [[1, 3, 3]]) == [drafted]


def test_a_lookup_never_finds_the_suffix_itself_and_takes_short_prompts():
    assert draft_of(PromptLookup(4), [[1], [1, 2], [1, 2, 3], [5, 5]]) == [[], [], [], [5]]


def test_matches_are_found_in_the_output_too():
    rows = Rows(PromptLookup(3))
    rows.seat({0: [1, 2]})
    assert chains(rows.propose({0: 9})) == [[]]
    rows.settle({0: [4, 5, 2]})
    assert chains(rows.propose({0: 9})) == [[4, 5, 2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_ngram": 0}, "max_ngram must be an integer, 1 or more"),
        ({"max_ngram": 2.5}, "max_ngram must be an integer, 1 or more, not 2.5"),
        ({"min_ngram": 4}, "min_ngram <= max_ngram"),
        ({"min_ngram": 0}, "min_ngram must be an integer, 1 or more"),
        ({"match": "best"}, "match must be one of"),
        ({"min_continuation": 0}, "min_continuation must be an integer, 1 or more"),
        ({"num_draft_tokens": -2}, "num_draft_tokens must be an integer, 0 or more, not -2"),
        ({"num_draft_tokens": 2.5}, "num_draft_tokens must be an integer, 0 or more, not 2.5"),
        ({"num_draft_tokens": 2, "length": Fixed(2)}, "not both"),
        ({"length": Entropy()}, "a lookup has no laws"),
    ],
    ids=str,
)
def test_bad_arguments_of_a_lookup_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PromptLookup(**arguments)


@pytest.mark.parametrize(
    ("sequences", "arguments", "message"),
    [
        ([[0, 1]], {"order": 2.5}, "order must be an integer, 1 or more, not 2.5"),
        ([[0, 1]], {"discount": 1.0}, "strictly between 0 and 1"),
        ([[0, 1]], {"discount": 0.0}, "strictly between 0 and 1"),
        ("a text", {}, "a list of id lists, texts or Paths: put a single one into a list"),
        ([[], []], {}, "no ids"),
        ([[0, 6]], {}, "outside 0..5"),
        ([[-1, 2]], {}, "outside 0..5"),
        (["text"], {}, "give the oracle's tokenizer"),
        ([[0, 1], [0.5, 1.0]], {}, r"sequences\[1\] must be a 1-D list of integer ids"),
        ([0, 1], {}, r"sequences\[0\] must be a 1-D list of integer ids"),
    ],
    ids=str,
)
def test_bad_corpora_are_refused(sequences, arguments, message):
    with pytest.raises(ValueError, match=message):
        NGramModel.train(sequences, 6, progress=False, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.7}, "needs sampled=True"),
        ({"temperature": -1.0, "sampled": True}, "0 or more"),
        ({"num_draft_tokens": 2, "length": Fixed(2)}, "not both"),
    ],
    ids=str,
)
def test_bad_settings_of_ngrams_are_refused(arguments, message):
    model = NGramModel.train(CORPUS, 6, progress=False)
    with pytest.raises(ValueError, match=message):
        NGram(model, **arguments)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda no: NGram(NGramModel.train(CORPUS, 6, progress=False), 3, no), "sampled"),
        (lambda no: PromptLookup(wrap=no), "wrap"),
        (lambda no: Lookahead(from_prompt=no), "from_prompt"),
        (lambda no: Threshold(threshold=0.5, per_token=no), "per_token"),
        (lambda no: Fixed(3, with_confidence=no), "with_confidence"),
    ],
)
def test_what_is_neither_true_nor_false_is_no_flag(make, name):
    make(np.True_)
    for value in ("no", 0.7, Fixed(2), None):
        with pytest.raises(ValueError, match=f"{name} must be True or False, not "):
            make(value)


def test_a_file_that_is_no_ngram_model_is_refused(tmp_path: Path):
    save_file({"weight": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors is no n-gram model: it holds \['weight'\]"):
        NGram.load(tmp_path / "other.safetensors")


def test_a_saved_model_is_loaded_as_it_was(tmp_path: Path):
    source = NGram.train(CORPUS, 6, order=3, progress=False, num_draft_tokens=4)
    source.save(tmp_path / "model.safetensors")
    loaded = NGram.load(tmp_path / "model.safetensors", num_draft_tokens=2, sampled=True)
    assert loaded.offers.max_depth == 2
    assert loaded.offers.laws
    for name, value in vars(source.model).items():
        np.testing.assert_array_equal(getattr(loaded.model, name), value)
        assert type(getattr(loaded.model, name)) is type(value)
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        assert file.metadata() == {"order": "3", "vocab_size": "6"}
    (tmp_path / "earlier").hardlink_to(tmp_path / "model.safetensors")
    NGram.train([[1]], 6, progress=False).save(tmp_path / "model.safetensors")
    assert NGram.load(tmp_path / "earlier").model.order == 3, "a file is replaced, never written over"


def test_texts_and_files_are_encoded_and_a_bar_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "x.txt").write_text("a b a b c", encoding="utf-8")
    made = NGramModel.train(["b b", tmp_path / "x.txt"], 3, tokenizer=tokenizer)
    assert "counting n-grams" in capsys.readouterr().err
    plain = NGramModel.train([[1, 1], [0, 1, 0, 1, 2]], 3, progress=False)
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(made.probs, plain.probs)
    with pytest.raises(ValueError, match="put a single one into a list"):
        NGramModel.train(tmp_path / "x.txt", 3, tokenizer=tokenizer)
    (tmp_path / "x.txt").write_bytes(b"a \xff")
    with pytest.raises(ValueError, match=r"x\.txt is no UTF-8: .* in position 2"):
        NGramModel.train([tmp_path / "x.txt"], 3, tokenizer=tokenizer, progress=False)


def test_sampled_ngrams_draw_from_the_models_laws_warped():
    model = NGramModel.train(CORPUS, 6, progress=False)
    rows = Rows(NGram(model, 3, sampled=True), sampling=SamplingParams(temperature=1.0, top_k=2))
    rows.seat({0: CORPUS[0][:9], 1: [3]})
    draft = rows.propose({0: 9, 1: 9})
    for row, chain in enumerate(chains(draft)):
        for node, declared in enumerate(draft.node_laws[row].dense(6)):
            context = (rows.ids[row] + chain[:node])[::-1]
            law = model.laws(model.states(np.array([(context + [-1] * 3)[:3]])))[0]
            law[np.argsort(-law, kind="stable")[2:]] = 0
            np.testing.assert_allclose(declared, law / law.sum(), rtol=1e-10)


def test_policies_cut_greedy_ngrams_by_their_confidence():
    model = NGramModel.train(CORPUS, 6, progress=False)
    prompts = [CORPUS[0][:9], [5], CORPUS[2][:20], [0, 0], [4, 4, 4]]
    rows = Rows(NGram(model, length=StopBelow(0.1, max_depth=4)), len(prompts))
    rows.seat(dict(enumerate(prompts)))
    draft = rows.propose(dict.fromkeys(range(len(prompts)), 9))
    full = draft_of(NGram(model, 4), prompts)
    assert len({len(chain) for chain in chains(draft)}) > 1
    for row, chain in enumerate(chains(draft)):
        assert chain == full[row][: len(chain)]
        sure = []
        for node in range(len(chain)):
            context = (prompts[row] + chain[:node])[::-1]
            law = model.laws(model.states(np.array([(context + [-1] * 3)[:3]])))[0]
            sure.append(law.max())
        np.testing.assert_allclose(draft.confidence[row, : len(chain)], sure, rtol=1e-12)
        reached = np.cumprod(sure)
        assert (reached[:-1] >= 0.1).all()
        assert reached[-1] < 0.1 or len(chain) == 4


def test_a_function_becomes_a_source_with_or_without_arguments():
    seen = []

    @stateless
    def echo(ids: list[int], budget: int) -> list[int]:
        """Say the last id once more."""
        seen.append((ids, budget))
        return ids[-1:]

    assert (echo.name, echo.offers.max_depth, echo.__doc__) == ("echo", 8, "Say the last id once more.")
    assert draft_of(echo, [[1, 2], [3], [4]], [20, 0, 2]) == [[2], [], [4]]
    assert seen == [([1, 2], 8), ([4], 2)]
    assert stateless(num_draft_tokens=2)(lambda ids, budget: ids).offers.max_nodes == 2


@pytest.mark.parametrize(
    ("answer", "message"), [([1, 1, 1], "3 ids for a budget of 2"), ([6], "outside 0..5"), ([-1], "outside 0..5")]
)
def test_a_functions_bad_answers_are_named(answer, message):
    source = stateless(num_draft_tokens=2)(lambda ids, budget: answer)
    with pytest.raises(ValueError, match=message):
        draft_of(source, [[1]])


def test_a_partial_function_is_a_source_and_a_number_is_none():
    source = stateless(num_draft_tokens=2)(partial(lambda token, ids, budget: [token] * budget, 3))
    assert (source.name, draft_of(source, [[1]])) == ("partial", [[3, 3]])
    with pytest.raises(ValueError, match=r"given 4 for a function: write @stateless\(num_draft_tokens=4\)"):
        stateless(4)


def test_a_number_of_tokens_is_a_fixed_length():
    assert resolve(3, None, 8) == Fixed(3)
    assert resolve(None, None, 8) == Fixed(8)
    assert resolve(None, Fixed(2), 8) == Fixed(2)
    session = Fixed(4).open(3)
    session.begin(np.array([0]))
    rows, lengths = np.arange(4), np.ones(4, dtype=np.int64)
    budget = Budget(np.array([9, 2, 9, -3]), np.array([9, 9, 1, 9]))
    assert depth_limits(session, rows, lengths, budget).tolist() == [4, 2, 1, 0]
    assert session.continues(rows, np.zeros((4, 2))).tolist() == [True] * 4


def test_drafts_stay_within_the_oracles_context_limit():
    oracle = TabularLM(TabularLM.random(6, 1, 0).table, max_context=12)
    result = SpeculativeDecoder(oracle, PromptLookup(6, wrap=True)).generate([[1, 1, 1, 1]], 50)
    assert len(result.tokens[0]) == 8
