"""A model with another tokenizer: what both can spell, what is read again as text, and the laws that come of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import oracles
from drafts import Cascade, Merged, OtherVocabulary, PromptLookup, SmallTransformer
from experiments.harness.tiny import letters
from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder, Threshold
from specdec.drafting import SharedPieces, Spelling
from specdec.exactness import check_draft, check_lossless
from tests.reference.tables import law_after, random_table
from tests.support.drafting.draft_rows import Rows, chains
from tests.support.drafting.law_sources import MATES, PENALTIES, PROMPT, TARGET
from tests.support.drafting.law_sources import MODEL as MODEL_OF_THREE
from tests.support.registry import LETTERS, SIX_IDS

TEXT = "def add(a, b):\n    return a + b  # café, naïve 😀\n\n\nprint(add(1, 2), 'über')\n" * 3
SIX = LETTERS[6]  # b a d f ab c, and a b c d ab cd


def byte_level(size: int, text: str = TEXT, control: tuple[str, ...] = ()) -> Tokenizer:
    """Return a byte-level tokenizer that learnt some merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(control),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


COARSE, FINE = byte_level(330, control=("<|end|>", "<|user|>")), byte_level(280, "return add café " * 9, ("<|end|>",))
SHARED = SharedPieces(FINE, FINE.get_vocab_size(), COARSE, COARSE.get_vocab_size())


def read(ids: list[int], shared: SharedPieces = SHARED) -> Spelling:
    spelling = Spelling(shared)
    for one in ids:
        spelling.append(one)
    return spelling


def test_pieces_agree_by_their_bytes_and_control_tokens_with_control_tokens_alone():
    shared = SharedPieces(SIX[0], 6, SIX[1], 6)
    assert shared.to_model == [1, 0, 5, 2, 4, -1]
    assert (shared.target_ids.tolist(), shared.model_ids.tolist()) == ([0, 1, 2, 3, 4], [1, 0, 5, 2, 4])
    ends = [tokenizer.token_to_id("<|end|>") for tokenizer in (COARSE, FINE)]
    assert SHARED.to_model[ends[0]] == ends[1]
    assert SHARED.to_model[COARSE.token_to_id("<|user|>")] == -1
    plain = Tokenizer(models.BPE({"a": 0, "<|end|>": 1}, []))
    assert SharedPieces(plain, 2, COARSE, COARSE.get_vocab_size()).to_model[ends[0]] == -1


def test_pieces_of_tokenizers_of_different_kinds_agree():
    pieces = {"<unk>": 0, "<0x0A>": 1, "\u2581return": 2, "(": 3}
    sentencepiece = Tokenizer(models.BPE(pieces, [], byte_fallback=True))
    sentencepiece.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    shared = SharedPieces(sentencepiece, 4, COARSE, COARSE.get_vocab_size())
    met = {COARSE.id_to_token(one): model for one, model in enumerate(shared.to_model) if model >= 0}
    assert met == {"Ċ": 1, "Ġreturn": 2, "(": 3}


def test_of_equal_pieces_the_lowest_ids_draft_and_all_are_read():
    target = Tokenizer(models.BPE({"a": 0, "<0x61>": 1, "b": 2}, []))
    shared = SharedPieces(letters("b", "a"), 2, target, 3)
    assert shared.to_model == [1, 1, 0]
    assert (shared.target_ids.tolist(), shared.model_ids.tolist()) == ([0, 2], [1, 0])


@given(text=st.text(st.sampled_from(" \n\tadretun(),é😀ü1"), max_size=40))
@settings(max_examples=80, deadline=None)
def test_what_the_model_reads_is_the_text(text):
    ids = COARSE.encode(text).ids
    spelling = read(ids)
    assert spelling.is_whole
    assert FINE.decode(spelling.own) == text
    assert spelling.ids == ids


@given(text=st.text(st.sampled_from(" \nadretun(é😀"), max_size=30), cut=st.integers(0, 30), seed=st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_it_follows_from_the_ids_alone(text, cut, seed):
    """Whatever was read and taken back before, and what ``settle`` tells is what changed."""
    generator = np.random.default_rng(seed)
    ids, known = COARSE.encode(text).ids, Spelling(SHARED)
    held: list[int] = []
    for target in (generator.integers(0, COARSE.get_vocab_size(), 12).tolist(), ids):
        for one in target:
            known.append(one)
            stable = known.stable
            held = held[:stable] + known.settle()
            assert held == known.own
        known.cut(min(cut, len(known.ids)))
        held = held[: known.stable] + known.settle()
        assert held == known.own == read(known.ids).own
    assert known.is_whole == read(known.ids).is_whole


def test_the_model_reads_what_its_tokenizer_puts_before_a_text_once():
    begin = FINE.token_to_id("<|end|>")
    beginning = Tokenizer.from_str(FINE.to_str())
    beginning.post_processor = processors.TemplateProcessing("<|end|> $A <|end|>", None, [("<|end|>", begin)])
    shared = SharedPieces(beginning, FINE.get_vocab_size(), COARSE, COARSE.get_vocab_size())
    ids = COARSE.encode("return add").ids
    known, plain = read(ids, shared), read(ids)
    assert known.own == known.settle() == [begin, *plain.own]
    known.cut(1)
    assert known.own == [begin, *read(ids[:1]).own]
    assert read([COARSE.token_to_id("<|end|>"), *ids], shared).own == [begin, *plain.own]
    beginning.add_special_tokens(["<s>"])
    size = FINE.get_vocab_size()
    beginning.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", size)])
    found = [SharedPieces(beginning, n, COARSE, COARSE.get_vocab_size()).beginning for n in (size, size + 1)]
    assert found == [[], [size]], "a model that lacks the id begins without it"


def test_text_is_read_again_from_the_last_stable_boundary():
    shared = SharedPieces(SIX[0], 6, SIX[1], 6)
    spelling = read([0, 1], shared)  # a b
    assert spelling.own == [1, 0]
    spelling.settle()
    spelling.append(5)  # cd: all of it again
    assert (spelling.stable, spelling.own) == (0, [4, 5, 2])  # ab c d
    word = COARSE.encode(" return add").ids
    before, after = read(COARSE.encode("café").ids), read(COARSE.encode("café").ids + word)
    assert after.own[: len(before.own)] == before.own, "a word that is over is not read again"


def test_long_words_and_control_tokens_are_boundaries():
    shared = SharedPieces(SIX[0], 6, SIX[1], 6)
    spelling = read([0] * 70, shared)
    spelling.settle()
    for one in (1, 5):
        spelling.append(one)
    assert spelling.stable >= 64
    # A piece of two bytes, which the model lacks, and a third make a character; the 64th byte is within one.
    single, alphabet = byte_level(256), {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    paired = Tokenizer(models.BPE({**alphabet, "\u00e4\u00b8": 256}, [("\u00e4", "\u00b8")]))
    paired.pre_tokenizer, paired.decoder = single.pre_tokenizer, single.decoder
    ids = paired.encode("中" * 60).ids
    assert len(ids) == 120
    assert read(ids, SharedPieces(single, 256, paired, 257)).own == single.encode("中" * 60).ids
    user, add = COARSE.token_to_id("<|user|>"), COARSE.encode("add").ids
    assert read([user, *add]).own == FINE.encode("<|user|>").ids + read(add).own


def test_a_part_of_a_character_waits_for_its_rest():
    target = Tokenizer(models.BPE({"a": 0, "<0xC3>": 1, "<0xA9>": 2, "b": 3, " ": 4}, []))
    shared = SharedPieces(letters("a", "b", "é", " "), 4, target, 5)
    assert [read(ids, shared).is_whole for ids in ([0], [0, 1], [0, 1, 2], [1, 3], [1, 3, 4])] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert read([0, 1, 2, 3], shared).own == [0, 2, 1]
    assert read([0, 1, 4, 3], shared).own == [0, 3, 1], "what cannot be spelled is left out with its word"
    rows = Rows(OtherVocabulary(TabularLM.random(4, 2, 0), 3, tokenizers=(letters("a", "b", "é", " "), target)))
    rows.seat({0: [0], 1: [0, 1], 2: [1], 3: [0, 1, 2]})
    assert rows.propose(dict.fromkeys(range(4), 9)).num_nodes.tolist() == [3, 0, 0, 3]
    rows.settle({1: [2], 2: [2, 0]})
    assert rows.propose({1: 9, 2: 9}).num_nodes.tolist() == [3, 3]


MODEL = random_table(6, 2, 41)


def restricted(own: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
    """Return the law of the target's ids after the model's, by hand."""
    law = law_after(MODEL, own) ** (1 / temperature)
    moved = np.zeros(6)
    for target, model in enumerate([1, 0, 5, 2, 4]):
        moved[target] = law[model]
    return moved / moved.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_declared_law_is_the_models_restricted_and_renormalised(temperature):
    rows = Rows(OtherVocabulary(TabularLM(MODEL), 2, tokenizers=SIX), sampling=SamplingParams(temperature=temperature))
    prompts = {0: [0, 2], 1: [5], 2: [0, 1, 5], 3: [4, 0]}
    reads = [(1, 5), (5, 2), (4, 5, 2), (4, 1)]
    rows.seat(prompts)
    draft = rows.propose(dict.fromkeys(range(4), 9))
    laws = draft.node_laws.dense(6).double().numpy()
    for row, own in enumerate(reads):
        np.testing.assert_allclose(laws[row, 0], restricted(own, temperature), rtol=1e-12)
        first = [1, 0, 5, 2, 4][int(draft.tokens[row, 0])]
        np.testing.assert_allclose(laws[row, 1], restricted((*own, first), temperature), rtol=1e-12)


def test_a_model_that_reads_the_same_ids_drafts_as_a_small_transformer_does():
    same = (letters(*"abcdef"), letters(*"abcdef"))
    for sampling in (SamplingParams(), SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.4)):
        sources = OtherVocabulary(SIX_IDS.model, 4, tokenizers=same), SmallTransformer(SIX_IDS.model, 4)
        runs = [
            SpeculativeDecoder(SIX_IDS.other, source).generate([[1, 2], [0], [3, 3, 4]], 30, sampling, seed=5)
            for source in sources
        ]
        assert runs[0].tokens == runs[1].tokens
        assert runs[0].records.columns()["num_accepted"] == runs[1].records.columns()["num_accepted"]


def test_accepted_tokens_are_not_read_again():
    """The model has the target's own laws, on the ids that both have: what it drafted keeps its keys."""
    model = SIX_IDS.model
    scored = []

    class Counting(TabularLM):
        def score(self, tokens, *args, **options):
            scored.append(tokens.shape[1])
            return super().score(tokens, *args, **options)

    source = OtherVocabulary(Counting(model.table), 3, tokenizers=(letters(*"abcdef"), letters(*"abcdef")))
    SpeculativeDecoder(model, source).generate([[1, 2]], 40, SamplingParams(temperature=1.0))
    assert max(scored) <= 2


def no_piece_in_common():
    return letters("x", "y"), letters("a", "b")


def spaces_first():
    tokenizer = Tokenizer(models.BPE({"\u2581": 0, "a": 1, "b": 2}, []))
    tokenizer.normalizer = normalizers.Prepend("\u2581")
    return tokenizer, letters("a", "b")


def spaces_before_words():
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "\u0120": 2}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    return tokenizer, Tokenizer(models.BPE({"a": 0, "b": 1, " a": 2}, []))


@pytest.mark.parametrize(
    ("tokenizers", "message"),
    [
        (None, "the model has no tokenizer, so nobody knows"),
        (no_piece_in_common(), "have no piece in common"),
        (spaces_first(), "changes the text that it reads"),
        (spaces_before_words(), "changes the text that it reads"),
    ],
    ids=["without", "disjoint", "spaces", "prefix"],
)
def test_tokenizers_that_cannot_serve_are_refused_with_the_reason(tokenizers, message):
    with pytest.raises(ValueError, match=message):
        OtherVocabulary(SIX_IDS.model, 2, tokenizers=tokenizers).open(TabularLM.random(6, 1, 0), 1, 8)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="mapping must be one of"):
        OtherVocabulary(SIX_IDS.model, 2, mapping="union")
    with pytest.raises(ValueError, match="mapping='text' drafts greedily"):
        OtherVocabulary(SIX_IDS.model, 2, temperature=1.0, mapping="text")
    with pytest.raises(ValueError, match="mapping='text' has none"):
        OtherVocabulary(SIX_IDS.model, length=Threshold(threshold=0.5), mapping="text")
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        OtherVocabulary(SIX_IDS.model, 2, temperature=-1)
    with pytest.raises(ValueError, match="not both"):
        OtherVocabulary(SIX_IDS.model, 2, length=object())


def test_a_small_transformer_refuses_another_vocabulary_and_names_this_one():
    with pytest.raises(ValueError, match=r"give the model to drafts\.OtherVocabulary"):
        SmallTransformer(SIX_IDS.model, 2).open(TabularLM.random(7, 1, 0), 1, 8)


def test_control_tokens_are_drafted_if_both_have_them():
    table = np.full((FINE.get_vocab_size(),) * 1, 1e-9)
    end = FINE.token_to_id("<|end|>")
    table[end] = 1
    source = OtherVocabulary(TabularLM(table / table.sum()), 2, tokenizers=(FINE, COARSE))
    rows = Rows(source, 1, oracle=TabularLM.random(COARSE.get_vocab_size(), 0, 0))
    rows.seat({0: COARSE.encode("def add").ids})
    assert set(chains(rows.propose({0: 9}))[0]) == {COARSE.token_to_id("<|end|>")}


def test_added_tokens_that_are_text_are_text():
    tokenizer = letters("a", "b")
    tokenizer.add_tokens([AddedToken("ab", special=False)])
    shared = SharedPieces(letters("ab", "a", "b"), 3, tokenizer, 3)
    assert (shared.to_model, shared.control) == ([1, 2, 0], set())


def test_the_embedded_models_draft_for_each_other():
    oracle, model = oracles.load("code", dtype="float32"), oracles.load("arithmetic-draft", dtype="float32")
    source, prompts = OtherVocabulary(model, 2), ["1+2=", "12+30=4"]
    result = SpeculativeDecoder(oracle, source).generate(prompts, 12, batch_size=1)
    assert result.tokens == SpeculativeDecoder(oracle).generate(prompts, 12).tokens
    assert result.stats.as_dict()["num_drafted"] > 0


@pytest.mark.parametrize("row", [5, 80])
def test_a_row_beyond_the_models_context_drafts_nothing(row):
    model = TabularLM(SIX_IDS.model.table, max_context=40)
    rows = Rows(OtherVocabulary(model, 3, tokenizers=SIX), 1, 200)
    rows.seat({0: [5] * row})
    assert rows.propose({0: 9}).num_nodes.tolist() == [3 if row == 5 else 0]
    rows.settle({0: [0, 5]})
    assert rows.propose({0: 9}).num_nodes.tolist() == [3 if row == 5 else 0]


def test_check_draft_finds_no_fault_with_texts_of_words():
    coarse, fine = byte_level(300), byte_level(270)
    model, oracle = (
        TabularLM(torch.rand(words.get_vocab_size(), generator=torch.Generator().manual_seed(3)).double().softmax(0))
        for words in (fine, coarse)
    )
    prompts = [coarse.encode(text).ids for text in ("def add", " return", "é", "print(add")]
    check_draft(OtherVocabulary(model, 3, tokenizers=(fine, coarse)), oracle, prompts, max_new_tokens=10)


def inside(outer, **arguments):
    """Return it beside a lookup, over three ids, the last of which is two of the model's."""
    model = OtherVocabulary(MODEL_OF_THREE, 2, tokenizers=LETTERS[3], **arguments)
    return outer([PromptLookup(2, min_ngram=2), model])


@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match"])
@pytest.mark.parametrize("outer", [Merged, Cascade])
def test_the_output_law_is_the_oracles_inside_other_sources(outer, rule):
    check_lossless(SpeculativeDecoder(TARGET, inside(outer), rule), PROMPT, 3, PENALTIES, mates=MATES)


def written(own: tuple[int, ...], size: int) -> str:
    """Return what the model writes greedily after its own ids, by hand."""
    for _ in range(size):
        own = (*own, int(law_after(MODEL, own).argmax()))
    return "".join(("b", "a", "d", "f", "ab", "c")[one] for one in own[len(own) - size :])


READS = [([0, 2], (1, 5)), ([5], (5, 2)), ([0, 1, 5], (4, 5, 2)), ([4, 0], (4, 1))]  # the target's ids and the model's


@pytest.mark.parametrize(("prompt", "own"), READS, ids=str)
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, logit_bias={5: 3.0})], ids=str)
def test_texts_are_what_the_model_writes_as_the_target_reads_it(prompt, own, sampling):
    rows = Rows(OtherVocabulary(TabularLM(MODEL), 4, mapping="text", tokenizers=SIX), 1, sampling=sampling)
    rows.seat({0: prompt})
    draft = rows.propose({0: 9})
    text = written(own, -(-4 * len(own) // len(prompt)) + 1)
    assert draft.laws is None
    # The target has no "f": what it reads of the text ends there.
    assert chains(draft) == [SIX[1].encode(text.partition("f")[0]).ids[:4]]


def test_a_text_ends_before_an_id_that_the_oracle_lacks():
    """Its tokenizer reads "ab" as id 2, and the oracle has two ids."""
    tokenizers = letters("b", "a", "f"), letters("a", "b", "ab")
    model, oracle = TabularLM([[0.0, 1, 0], [1, 0, 0], [1, 0, 0]]), TabularLM.random(2, 1, 0)
    source = OtherVocabulary(model, 4, mapping="text", tokenizers=tokenizers)
    assert tokenizers[1].encode("bab").ids == [1, 2]
    made, plain = (SpeculativeDecoder(oracle, draft).generate([[0], [1]], 9) for draft in (source, None))
    assert made.tokens == plain.tokens
    assert {record["num_drafted"] for record in made.records} == {0, 1}


@pytest.mark.parametrize(
    ("first", "merges", "drafted"),
    [(0, [], [1, 2, 1]), (0, [("\u2581", "a")], [3, 3]), (1, [], [])],
    ids=["a word", "pieces that begin with a space", "its rest"],
)
def test_a_text_is_drafted_as_it_goes_on_where_the_oracles_tokenizer_puts_a_space_before_it(first, merges, drafted):
    """The model writes " a a" or "a a a", and the oracle's tokenizer reads "a a" as " a a"."""
    target = Tokenizer(models.BPE({"b": 0, "\u2581": 1, "a": 2, "\u2581a": 3}, merges))
    target.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    model = TabularLM(np.eye(3)[[1, 0, first]])
    source = OtherVocabulary(model, 3, mapping="text", tokenizers=(letters(" ", "a", "b"), target))
    rows = Rows(source, 1)
    rows.seat({0: [0, 0]})
    assert chains(rows.propose({0: 9})) == [drafted]
