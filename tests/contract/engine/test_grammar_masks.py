"""Grammars in runs: every source, batches of rows with and without one, ends, forced drafts, and what is native."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import drafts
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec import Draft, SamplingParams, SpeculativeDecoder
from specdec.exactness import check_draft
from specdec.grammars import Grammar, make_grammars
from tests.reference.grammars import mask_after
from tests.support.backends import needed_native
from tests.support.drafting.warpings import warping_of
from tests.support.models.tiny_models import small_model
from tests.support.pairwise import chosen
from tests.support.registry import OTHERS, SIX_IDS, WAYS
from tests.support.texts.grammars import END, LISTS, WORDS, WRITTEN, Written, pieces_of

PROMPTS = [[0, 3, 2], [2], [5, 1, 0, 3, 2, 3, 2], [1, 1, 3], [4, 2, 3]]
LONG = {
    "json_schema": {
        "type": "array",
        "items": {"const": 1},
        "minItems": 4,
        "x-guidance": LISTS.asked["json_schema"]["x-guidance"],
    }
}
ASKED = [
    LISTS.sampling(temperature=0),
    SamplingParams(temperature=1.0),
    LISTS.sampling(temperature=0.9, top_p=0.9, frequency_penalty=0.3),
    SamplingParams(temperature=1.0, **LONG),
    SamplingParams(temperature=1.0, regex="[1,]{5,9}"),
]


@pytest.fixture
def target(monkeypatch):
    monkeypatch.setattr(SIX_IDS.layered, "tokenizer", pieces_of(LISTS.pieces), raising=False)
    return SIX_IDS.layered


def name_of(way):
    return way.partition(": ")[0]


@cache
def plain_run(target):
    return SpeculativeDecoder(target, rule="coupled").generate(PROMPTS, 9, ASKED, seed=3)


@chosen({"way": tuple(WAYS)}, lambda way: {name_of(way), name_of(way) in ("shape", *OTHERS) and way})
def test_tokens_are_plain_decodings_with_every_source(way, target):
    source, plain = WAYS[way](SIX_IDS), plain_run(target)
    found = SpeculativeDecoder(target, source, rule="coupled").generate(PROMPTS, 9, ASKED, seed=3, batch_size=3)
    assert found.tokens == plain.tokens
    assert found.finish_reasons == plain.finish_reasons
    assert {"stop", "length"} <= set(plain.finish_reasons)


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_a_mask_is_a_function_of_the_ids_wherever_the_matcher_stood(case):
    oracle, generator = case.oracle(), np.random.default_rng(4)
    size = oracle.vocab_size
    (grammar,) = make_grammars(oracle, [case.sampling().constraint], [2])
    output: list[int] = []
    for _ in range(60):
        mask, over = mask_after(*case.library, output)
        found = grammar.allowed_ids(np.array(output[:1], dtype=np.int64), np.array(output[1:], dtype=np.int64))
        assert (found is None) if over and len(output) > 1 else (found.tolist() == mask[:size])
        choices = [] if over else np.flatnonzero(mask[:size]).tolist()
        if not choices or len(output) > 7 or generator.random() < 0.3:
            output = output[: int(generator.integers(0, len(output) + 1))]
        else:
            output = [*output, int(generator.choice(choices))]
        if output and output[-1] in oracle.eos_ids:
            output = output[:-1]


@pytest.mark.parametrize("kernels", [None, "reference"])
def test_rows_of_a_batch_are_as_they_are_alone(target, kernels):
    source = drafts.Cascade([drafts.Forced(3), drafts.SmallTransformer(SIX_IDS.model, 3)])
    decoder = SpeculativeDecoder(target, source, kernels=kernels)
    whole = decoder.generate(PROMPTS, 9, ASKED, seed=1)
    for i, prompt in enumerate(PROMPTS):
        alone = decoder.generate([prompt], 9, ASKED[i], whole.seeds[i : i + 1])
        assert alone.tokens == whole.tokens[i : i + 1]


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_a_draft_by_the_oracle_itself_stands(case):
    """So it is masked as the oracle is, and renormalised."""
    decoder = SpeculativeDecoder(case.oracle(), drafts.SmallTransformer(case.oracle(), 3))
    stats = decoder.generate([[0]] * 8, 12, case.sampling()).stats
    assert stats.num_accepted > 0
    assert stats.acceptance_rate == 1.0


@pytest.mark.parametrize("way", ["NGram: sampled", "SmallTransformer: warm", "shape: Kary", "Staged: siblings"])
def test_tokens_follow_the_declared_laws(way, target):
    check_draft(WAYS[way](SIX_IDS), target, PROMPTS, max_new_tokens=8, sampling=ASKED[2])


def test_log_probabilities_are_those_of_the_masked_law():
    decoder = SpeculativeDecoder(WORDS.oracle(), drafts.SmallTransformer(WORDS.oracle(1), 2))
    found = decoder.generate([[0, 1]] * 6, 3, WORDS.sampling(), return_logprobs=True)
    law = WORDS.law(WORDS.oracle(), [0, 1], 3)
    for tokens, logprobs in zip(found.tokens, found.logprobs, strict=True):
        assert math.exp(sum(logprobs)) == pytest.approx(law[tuple(tokens)])


def finish(case: Written, length: int = 6, **options) -> tuple[list[str], str]:
    """Return the pieces of an output, and how it ended."""
    decoder = SpeculativeDecoder(case.oracle(), drafts.PromptLookup(3))
    found = decoder.generate([[0, 1, 0, 1]], length, SamplingParams(temperature=1.0, **options), seed=5)
    return [case.pieces[token] for token in found.tokens[0]], found.finish_reasons[0]


def test_a_finished_grammar_is_a_stop():
    assert finish(WORDS, regex="ab(ab)?c") in ((["ab", "c"], "stop"), (["ab", "ab", "c"], "stop"))
    assert finish(WORDS, regex="(a|b)d?")[1] == "stop", "nothing but an end may follow, for want of a piece"
    assert finish(LISTS, regex="11") == (["1", "1"], "stop"), "without an EOS too"
    assert finish(WORDS, regex="c+", ignore_eos=True, logit_bias={4: 50.0})[1] == "stop", "an EOS ends the text"


def test_an_eos_or_the_length_ends_what_could_go_on():
    pieces, reason = finish(WORDS, regex="c+", logit_bias={4: 50.0})
    assert (pieces[-1], reason) == (END, "eos")
    assert finish(WORDS, 2, regex="ccccc") == (["c", "c"], "length")


def test_a_node_without_an_id_matters_to_nobody_who_does_not_get_there():
    """After b there is no d or e to go on with; a lookup drafts b, and the oracle never takes it."""
    oracle, asked = WORDS.oracle(), SamplingParams(regex="(a|b[de])c", logit_bias={1: -50.0})
    decoder = SpeculativeDecoder(oracle, drafts.PromptLookup(2))
    assert decoder.generate([[0, 1, 1, 3, 0]], 4, asked).tokens == [[0, 3]]
    asked, model = SamplingParams(regex="(a|b[de])c", logit_bias={1: 50.0}), WORDS.oracle(1)
    staged = drafts.Staged(model, drafts.PromptLookup(1), 3)  # it asks about ids as if they stood
    for source in (None, drafts.PromptLookup(2), drafts.SmallTransformer(model, 2), staged):
        for stop in ((), [[0]]):
            with pytest.raises(ValueError, match="request 1: its regex leaves no id at position 3 "):
                SpeculativeDecoder(oracle, source).generate([[0], [0, 1]], 4, [SamplingParams(), asked], stop=stop)


def test_an_id_that_somebody_took_for_granted_is_refused_all_the_same():
    """After b no ab may follow, after a no end; and what has to follow c is written by ab and c, not by a, b and c."""
    for regex, given in (("(ab|ba?c)*", [1, 2]), ("(ab|ba?c)*", [0, 4]), ("cabc", [3, 0])):
        (grammar,) = make_grammars(WORDS.oracle(), [SamplingParams(regex=regex).constraint], [4])
        output = np.array(given)
        for length in (1, 2):
            grammar.allowed_ids(output[:length])
        with pytest.raises(ValueError, match="leaves no id at position 5 "):
            grammar.first_end(np.array([*given, 3]), 3)


class Stub:
    """A matcher of all ids, which fails after a text of some length."""

    def __init__(self, size, longest=99, masks=None):
        self.size, self.longest, self.length, self.masks = size, longest, 0, [] if masks is None else masks

    def deep_copy(self):
        return Stub(self.size, self.longest, self.masks)

    def consume_tokens(self, ids):
        self.length += len(ids)
        return True

    def rollback(self, count):
        self.length -= count
        return True

    def compute_bitmask(self):
        self.masks.append(self.length)
        return b"\xff" * (self.size // 8)

    def is_accepting(self):
        return False

    def is_error(self):
        return self.length >= self.longest

    def get_error(self):
        return "too complex\n<state>..." if self.is_error() else ""


def test_masks_of_a_large_vocabulary_are_remembered():
    stub = Stub(2**17)
    grammar = Grammar(stub, 2**17, [2**17 - 1], ("request 0", "regex"), 0)
    for _ in range(2):
        for token in range(100):
            assert grammar.allowed_ids(np.array([token])).sum() == 2**17 - 1
    assert stub.masks == [0, *[1] * 100], "the first tells whether the grammar can be begun"


def test_the_librarys_own_failure_is_told():
    with pytest.raises(ValueError, match=r"allows no id of this vocabulary at the start: .* says: too complex$"):
        Grammar(Stub(16, 0), 16, [15], ("request 0", "regex"), 0)
    grammar = Grammar(Stub(16, 2), 16, [15], ("request 0", "regex"), 3)
    with pytest.raises(ValueError, match=r"leaves no id at position 5 .* says: too complex$"):
        grammar.first_end(np.array([0, 1, 2, 3]), 4)


def test_requests_that_have_ended_keep_nothing_of_their_grammars():
    decoder = SpeculativeDecoder(LISTS.oracle(), drafts.PromptLookup(2))
    state, most = decoder.start([[0]] * 6, 5, LISTS.sampling(), batch_size=2), 0
    grammars = [request.grammar for request in state.slots.requests]
    while state.has_work:
        state, _ = decoder.step(state)
        kept = [one for one in grammars if one._places or one._matcher is not None]
        most = max(most, len(kept))
        assert len(kept) <= 2
    assert (most, kept) == (2, [])


def test_a_request_that_is_added_twice_has_a_grammar_for_each():
    decoder = SpeculativeDecoder(LISTS.oracle(), drafts.PromptLookup(2))
    state, request = decoder.start([], batch_size=2, max_length=9), decoder.request([0], 5, LISTS.sampling())
    for number in range(3):
        assert state.add(request) == number
        decoder.step(state)
    owners = [one.grammar.owner for one in state.slots.requests]
    while state.has_work:
        decoder.step(state)
    assert owners == ["request 0", "request 1", "request 2"]
    assert decoder.finish(state).tokens == decoder.generate([[0]] * 3, 5, LISTS.sampling(), [(0, 0)] * 3).tokens


def test_padding_has_no_mask():
    asked: list[tuple[int, list[int]]] = []
    grammar = SimpleNamespace(allowed_ids=lambda output, path: asked.append((int(output[0]), path.tolist())))
    params = [SamplingParams(temperature=1.0, regex="a")] * 2
    warping = warping_of(params, [[1], [1]], [[2], [3]], grammars=[grammar] * 2)
    draft = Draft(torch.tensor([[4, 0, 0], [4, 5, 6]]), torch.tensor([1, 3]))
    warping.adjust(torch.zeros(2, 4, 8), draft)
    assert asked == [(2, []), (2, [4]), (3, []), (3, [4]), (3, [4, 5]), (3, [4, 5, 6])]


def test_the_ends_of_a_chat_templates_turns_end_a_text_too():
    oracle = TabularLM.random(4, 1, 0, eos_id=2)
    oracle.tokenizer = pieces_of(("a", "b", END))
    oracle.tokenizer.add_special_tokens(["<turn>"])
    oracle.chat_template = SimpleNamespace(end_ids=(3,), stop_strings=())
    (grammar,) = make_grammars(oracle, [SamplingParams(regex="a+").constraint], [1])
    assert grammar.allowed_ids(np.array([], dtype=np.int64)).tolist() == [True, False, False, False]
    assert grammar.allowed_ids(np.array([0])).tolist() == [True, False, True, True]
    assert grammar.first_end(np.array([0, 0, 3]), 3) == 2


def test_an_oracle_that_allows_none_of_the_grammars_ids_is_named():
    table = np.zeros((3, 3))
    table[:, 2] = 1.0
    oracle = TabularLM(table)
    oracle.tokenizer = pieces_of(("a", "b", "c"))
    with pytest.raises(ValueError, match="request 0: its regex leaves no id at position 1 "):
        SpeculativeDecoder(oracle, drafts.PromptLookup(2)).generate([[0]], 4, SamplingParams(regex="[ab]+"))


def test_forced_ids_are_drafted_and_stand():
    oracle, asked = LISTS.oracle(), SamplingParams(temperature=1.0, **LONG)
    plain = SpeculativeDecoder(oracle).generate([[0], [1]], 16, asked, seed=2)
    found = SpeculativeDecoder(oracle, drafts.Forced(4), rule="coupled").generate([[0], [1]], 16, asked, seed=2)
    nearly = SpeculativeDecoder(oracle, drafts.Forced(4, max_ids=3)).generate([[0], [1]], 16, asked, seed=2)
    assert found.stats.num_accepted > 0
    assert found.stats.acceptance_rate == 1.0
    assert nearly.stats.block_efficiency > 1.0 < found.stats.block_efficiency
    assert plain.stats.block_efficiency == 1.0
    assert SpeculativeDecoder(oracle, drafts.Forced()).generate([[0]], 4).stats.num_drafted == 0, "no grammar, no draft"


def test_nearly_forced_ids_are_chosen_by_the_last_law():
    """Of an oracle whose law never changes, the likeliest id of the last law is the next greedy one."""
    law = np.array([0.05, 0.1, 0.2, 0.3, 0.35])
    oracle = TabularLM(law)
    oracle.tokenizer = pieces_of(("a", "b", "c", "d", "e"))
    asked = SamplingParams(regex="[abc]{12}")
    decoder = SpeculativeDecoder(oracle, drafts.Forced(3, max_ids=3))
    stats = decoder.generate([[0]], 12, asked).stats
    assert stats.acceptance_rate == 1.0
    assert stats.target_calls == 4, "one token for want of a law, then four, four and three"


def test_compiled_chains_are_left_alone_only_while_a_grammar_is_there():
    needed_native()
    oracle, model = NativeTransformer(small_model()), NativeTransformer(small_model(seed=1))
    size = oracle.vocab_size
    pieces = [chr(33 + i) for i in range(size)]
    oracle.tokenizer = pieces_of(pieces)
    decoder = SpeculativeDecoder(oracle, drafts.SmallTransformer(model, 3))
    asked = [SamplingParams(), SamplingParams(regex="[!-0]+")]
    mixed, free = decoder.generate([[1], [2]], 8, asked), decoder.generate([[1]], 8)
    assert mixed.drafter == "small_transformer"
    assert free.drafter == "native: small_transformer"
    assert mixed.tokens[0] == free.tokens[0]
    assert all(token < 16 for token in mixed.tokens[1])
