"""The public interface of the engine, and every clause of its semantics at the edges."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from drafts import PromptLookup
from oracles.graphed import GraphedTransformer
from oracles.native import NativeTransformer
from oracles.tabular import TabularLM
from specdec import Fixed, SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, WatchedSession, WatchedSource, rule_label
from specdec.drafting import MemorylessSession
from specdec.engine import decoder as engine_decoder
from specdec.engine import result as engine_result
from specdec.engine import state as engine_state
from specdec.engine.no_draft import NoDraft
from specdec.verify import RULES
from tests.reference.tables import law_after, random_table, warp
from tests.support.backends import needed_native
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.counting import LETTERS, SIZE, Counting, counts, guessing
from tests.support.models.tiny_models import tiny_unpacked
from tests.support.runs.hand_clock import clock_of

SOURCES = {
    "plain": None,
    "empty drafts": guessing(0),
    "right": guessing(5),
    "half right": guessing(5, num_right=2),
    "wrong": guessing(3, num_right=0),
}
all_sources = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
TABLE = random_table(5, 2, 31)


def run(source, prompts, max_new_tokens, oracle=None, **options):
    return SpeculativeDecoder(oracle or Counting(), source).generate(prompts, max_new_tokens, **options)


@all_sources
@pytest.mark.parametrize("rule", RULES)
def test_greedy_output_is_plain_decodings_for_every_rule(source, rule):
    decoder = SpeculativeDecoder(Counting(), source, rule)
    result = decoder.generate([[0], [3, 9], [15]], 11)
    assert result.tokens == [counts(1, 11), counts(10, 11), counts(0, 11)]
    assert result.finish_reasons == ["length"] * 3
    assert result.texts is None
    assert result.logprobs is None
    assert result.exactness == ("exact" if RULES[rule].lossless else f"lossy: {rule_label(RULES[rule])}")
    assert result.seeds == [(0, 0), (0, 1), (0, 2)]


@all_sources
def test_eos_ends_its_own_row_wherever_it_falls_in_a_block(source):
    for first in range(9):
        result = run(source, [[first], [11]], 12, Counting(eos_id=9))
        assert result.tokens == [counts(first + 1, 9 - first), counts(12, 12)]
        assert result.finish_reasons == ["eos", "length"]
        assert result.stats.num_emitted == 9 - first + 12
        one, other = result.stats.requests
        assert one.num_accepted + one.num_steps - one.num_emitted == one.truncated.get("eos", 0)
        assert other.num_truncated == 0


def test_tokens_behind_eos_are_truncated_and_counted_so():
    result = run(guessing(5), [[5]], 12, Counting(eos_id=7))
    assert result.tokens == [[6, 7]]
    assert result.stats.num_accepted == 5
    assert result.stats.num_truncated == result.stats.truncated["eos"] == 4
    assert result.stats.target_calls == 1


@all_sources
def test_eos_in_the_prompt_ends_nothing(source):
    assert run(source, [[9, 9]], 4, Counting(eos_id=9)).tokens == [counts(10, 4)]


def test_eos_in_a_rejected_draft_ends_nothing():
    result = run(guessing(4, num_right=0), [[0]], 6, Counting(eos_id=2))
    assert result.tokens == [[1, 2]]
    # The source proposes 2 where 1 comes.
    assert result.stats.num_accepted == 0
    assert result.stats.num_steps == 2


def test_several_eos_ids_all_end_a_row():
    oracle = Counting()
    oracle.eos_ids = (4, 9)
    result = run(guessing(5), [[1], [6]], 10, oracle)
    assert result.tokens == [[2, 3, 4], [7, 8, 9]]
    assert result.finish_reasons == ["eos", "eos"]


@all_sources
def test_ignore_eos_goes_on_for_that_request_only(source):
    sampling = [SamplingParams(ignore_eos=True), SamplingParams()]
    result = run(source, [[7], [7]], 5, Counting(eos_id=9), sampling=sampling)
    assert result.tokens == [counts(8, 5), [8, 9]]
    assert result.finish_reasons == ["length", "eos"]


@all_sources
def test_min_new_tokens_forbids_eos_until_then(source):
    sampling = [SamplingParams(min_new_tokens=n) for n in (0, 2, 3, 4)]
    oracle = Counting(eos_id=3, certainty=0.5)
    result = run(source, [[1]] * 4, 6, oracle, sampling=sampling)
    # Two tokens precede the second 3; where 3 is forbidden the lowest of the other ids follows: 0, then 1, 2, 3.
    assert result.tokens == [[2, 3], [2, 0, 1, 2, 3], [2, 0, 1, 2, 3], [2, 0, 1, 2, 3]]


@all_sources
@pytest.mark.parametrize("stop", [[[6]], [[5, 6]], [[3, 4, 5, 6]], [[9], [4, 5, 6], [1]]])
def test_stop_ids_end_a_row_inside_blocks_and_across_them(source, stop):
    prompts = [[2], [1], [0, 3], [0, 1, 2], [5, 6, 1]]
    result = run(source, [*prompts, [8]], 12, stop=stop)
    for prompt, tokens, reason in zip(prompts, result.tokens, result.finish_reasons, strict=False):
        expected = counts(prompt[-1] + 1, 12)
        ends = [n for n, s in itertools.product(range(1, 13), stop) if len(s) <= n and expected[n - len(s) : n] == s]
        assert tokens == expected[: min(ends, default=12)]
        assert reason == ("stop" if ends else "length")


@all_sources
def test_a_special_token_as_a_stop_string_ends_a_request_though_text_never_holds_it(source):
    oracle = Counting(pieces=LETTERS)
    oracle.tokenizer.add_special_tokens(["d"])
    result = run(source, [[0]], 12, oracle, stop=["d"])
    assert (result.tokens, result.finish_reasons, result.texts) == ([[1, 2, 3]], ["stop"], ["bc"])
    ids = oracle.tokenizer.encode("cd").ids
    with pytest.raises(ValueError, match=rf"stop has 'cd'.*special token 'd'.*give ids, such as {re.escape(str(ids))}"):
        run(source, [[0]], 12, oracle, stop=["b", "cd"])
    assert run(source, [[0]], 12, oracle, stop=[ids]).tokens == [[1, 2, 3]]


@all_sources
def test_stops_may_differ_between_requests(source):
    result = run(source, [[0], [0], [0], [0]], 12, stop=[[[5, 6]], None, [[3], [9]], []])
    assert [len(ids) for ids in result.tokens] == [6, 12, 3, 12]
    assert result.finish_reasons == ["stop", "length", "stop", "length"]
    with pytest.raises(ValueError, match="stop has lists for 2 requests and there are 3 prompts"):
        run(source, [[0], [0], [0]], 12, stop=[[[5, 6]], None])


@all_sources
def test_a_stop_in_the_prompt_or_across_its_end_does_not_count(source):
    result = run(source, [[4, 5]], 3, stop=[[4, 5], [5, 6]])
    assert result.tokens == [[6, 7, 8]]
    assert result.finish_reasons == ["length"]
    oracle = Counting(pieces=LETTERS)
    by_text = run(source, ["ef"], 3, oracle, stop=["ef", "fg"])
    assert by_text.texts == ["ghi"]
    assert by_text.finish_reasons == ["length"]


@all_sources
@pytest.mark.parametrize("stop", ["e", "de", "cdefg", "g"])
def test_stop_strings_are_cut_off_the_text_and_complete_in_the_tokens(source, stop):
    prompts = ["a", "b", "pab"]
    result = run(source, prompts, 12, Counting(pieces=LETTERS), stop=stop)
    for prompt, text, tokens in zip(prompts, result.texts, result.tokens, strict=True):
        whole = "".join(LETTERS[i] for i in counts(LETTERS.index(prompt[-1]) + 1, 12))
        assert text == whole[: whole.index(stop)]
        assert "".join(LETTERS[i] for i in tokens) == whole[: whole.index(stop) + len(stop)]
    assert result.finish_reasons == ["stop"] * 3


@all_sources
def test_a_stop_string_may_end_inside_a_token(source):
    pieces = [*LETTERS[:4], "e!f", *LETTERS[5:]]
    result = run(source, [[1]], 12, Counting(pieces=pieces), stop=["d!", "de!"])
    assert result.tokens == [[2, 3, 4]]
    assert result.texts == ["c"]


@all_sources
@pytest.mark.parametrize(
    ("stop", "eos_id", "tokens", "reason", "text"),
    [
        ([[6]], 8, [5, 6], "stop", "fg"),
        ([[8]], 6, [5, 6], "eos", "f"),
        ([[6]], 6, [5, 6], "eos", "f"),
        (["gh"], 8, [5, 6, 7], "stop", "f"),
        (["gh"], 6, [5, 6], "eos", "f"),
    ],
)
def test_whichever_of_stop_and_eos_comes_first_wins(source, stop, eos_id, tokens, reason, text):
    result = run(source, [[4]], 10, Counting(eos_id=eos_id, pieces=LETTERS), stop=stop)
    assert (result.tokens, result.finish_reasons, result.texts) == ([tokens], [reason], [text])


@all_sources
def test_a_stop_or_eos_on_the_last_allowed_token_is_one(source):
    assert run(source, [[0]], 4, stop=[[3, 4]]).finish_reasons == ["stop"]
    assert run(source, [[0]], 4, stop=[[5]]).finish_reasons == ["length"]
    assert run(source, [[0]], 4, Counting(eos_id=4)).finish_reasons == ["eos"]
    assert run(source, [[0]], 4, Counting(eos_id=5)).finish_reasons == ["length"]
    at_limit = Counting(max_context=5, eos_id=4)
    assert run(source, [[0]], 9, at_limit).finish_reasons == ["eos"]


@all_sources
def test_max_new_tokens_is_never_overshot_and_drafts_shrink_to_it(source):
    decoder = SpeculativeDecoder(Counting(), source)
    for limit in range(14):
        state = decoder.start([[0], [1, 2, 3]], limit)
        while state.has_work:
            state, info = decoder.step(state)
            produced = info.num_committed - np.array([1, 3])[info.requests]
            assert (produced + info.draft_depth + 1 <= limit).all(), "drafts shrink to what is left"
        result = decoder.finish(state)
        assert result.tokens == [counts(1, limit), counts(4, limit)]
        assert result.stats.num_truncated == 0


@all_sources
@pytest.mark.parametrize("length", [1, 4, 7, 8])
def test_the_context_is_never_overshot(source, length):
    result = run(source, [counts(0, length), [3]], 20, Counting(max_context=9))
    assert result.tokens == [counts(length, 9 - length), counts(4, 8)]
    assert result.finish_reasons == ["length", "length"]


@all_sources
def test_defined_results_at_nothing(source):
    nothing = run(source, [], 5)
    assert (nothing.tokens, nothing.finish_reasons, nothing.seeds) == ([], [], [])
    assert nothing.stats.truncated == {"eos": 0, "stop": 0}
    assert nothing.stats.num_requests == nothing.stats.target_calls == nothing.stats.prefill_calls == 0
    empty = run(source, [[1], [2, 3]], 0, Counting(pieces=LETTERS), return_logprobs=True)
    assert empty.tokens == [[], []]
    assert empty.texts == ["", ""]
    assert empty.logprobs == [[], []]
    assert empty.finish_reasons == ["length", "length"]
    assert empty.stats.target_calls == empty.stats.prefill_calls == 0
    assert empty.stats.num_requests == 2
    full = run(source, [counts(0, 9)], 0, Counting(max_context=9))
    assert full.tokens == [[]]


def test_prefill_covers_the_prompt_without_its_last_token_and_counts_apart():
    result = run(guessing(5), [[3]], 6)
    assert (result.stats.prefill_calls, result.stats.target_calls) == (0, 1)
    long = run(guessing(5), [counts(0, 300), [2]], 6)
    assert (long.stats.prefill_calls, long.stats.target_calls) == (3, 1)
    assert long.tokens == [counts(300, 6), counts(3, 6)]


@all_sources
def test_prompts_may_be_lists_tensors_arrays_and_strings(source):
    prompts = [[0, 1], torch.tensor([0, 1]), torch.tensor([0, 1], dtype=torch.int32), np.array([0, 1]), (0, 1), "ab"]
    assert run(source, prompts, 4, Counting(pieces=LETTERS)).tokens == [[2, 3, 4, 5]] * len(prompts)


def test_sampling_parameters_hold_per_request():
    sampling = [
        SamplingParams(logit_bias={3: -math.inf}),
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(frequency_penalty=50.0),
    ]
    oracle = Counting(certainty=0.5)
    for source in (None, guessing(5)):
        result = run(source, [[1]] * 4, 8, oracle, sampling=sampling)
        assert result.tokens[0] == [2, 0, 1, 2, 0, 1, 2, 0]
        assert result.tokens[1] == result.tokens[2] == counts(2, 8)
        assert sorted(run(source, [[1]] * 4, SIZE, oracle, sampling=sampling).tokens[3]) == list(range(SIZE))


def test_a_banned_id_is_never_drawn_and_a_certain_one_always_is():
    sampling = SamplingParams(temperature=3.0, logit_bias={2: -math.inf})
    for rule, source in [("standard", Chains(TABLE, 3)), ("coupled", Chains(TABLE, 3)), ("standard", None)]:
        result = SpeculativeDecoder(TabularLM(TABLE), source, rule).generate([[2, 2]] * 20, 20, sampling)
        assert not any(2 in tokens for tokens in result.tokens)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs_are_those_of_a_second_scoring(rule, temperature):
    source = RandomTrees(TABLE) if RULES[rule].trees else Chains(TABLE, 3)
    decoder = SpeculativeDecoder(TabularLM(TABLE, eos_id=4), source, rule)
    # What is chosen greedily is chosen by logits that are biased; its probability is that of the law as it was.
    warped = {"top_k": 3} if temperature else {"logit_bias": {2: 1.0}, "presence_penalty": 0.4}
    sampling = SamplingParams(temperature, **warped)
    prompts = [[0], [1, 2], [3, 3, 3]]
    result = decoder.generate(prompts, 12, sampling, batch_size=2, return_logprobs=True)
    assert [len(row) for row in result.logprobs] == [len(row) for row in result.tokens]
    for prompt, tokens, logprobs in zip(prompts, result.tokens, result.logprobs, strict=True):
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            law = law_after(TABLE, (*prompt, *tokens[:i]))
            wanted = math.log((warp(law, temperature, 3) if temperature else law)[token])
            assert abs(logprob - wanted) < 1e-12


def test_asking_for_logprobs_changes_no_token():
    decoder = SpeculativeDecoder(TabularLM(TABLE), Chains(TABLE[::-1], 3))
    sampling = SamplingParams(temperature=1.0)
    plain, asked = (decoder.generate([[0], [1]], 30, sampling, return_logprobs=flag) for flag in (False, True))
    assert plain.tokens == asked.tokens


@pytest.mark.parametrize("rule", RULES)
def test_start_and_step_do_what_generate_does(rule):
    decoder = SpeculativeDecoder(TabularLM(TABLE, eos_id=0), Chains(TABLE[::-1], 3), rule)
    arguments = ([[1], [2, 3], [4]], 15, SamplingParams(temperature=1.0), 7, [[3, 3]], 2)
    whole = decoder.generate(*arguments)
    state = decoder.start(*arguments)
    emitted: list[list[int]] = [[], [], []]
    while state.has_work:
        state, info = decoder.step(state)
        for request, tokens, count in zip(info.requests, info.tokens, info.num_emitted, strict=True):
            emitted[request] += tokens[:count].tolist()
    result = decoder.finish(state)
    assert result.tokens == whole.tokens == emitted
    assert result.finish_reasons == whole.finish_reasons
    assert (result.stats.num_steps, result.stats.num_accepted) == (whole.stats.num_steps, whole.stats.num_accepted)
    with pytest.raises(ValueError, match="finish"):
        decoder.step(state)


@pytest.mark.parametrize("rule", RULES)
def test_a_stream_is_generate_piece_by_piece(rule):
    decoder = SpeculativeDecoder(Counting(eos_id=13, certainty=0.6, pieces=LETTERS), guessing(4, 3), rule)
    for seed, stop in itertools.product(range(12), [None, ["gh", "b"]]):
        sampling = SamplingParams(temperature=1.0)
        whole = decoder.generate(["ab"], 20, sampling, seed, stop)
        events = list(decoder.stream("ab", 20, sampling, seed, stop))
        assert "".join(event.text for event in events) == whole.texts[0]
        assert [token for event in events for token in event.tokens] == whole.tokens[0]
        assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + whole.finish_reasons


@pytest.mark.parametrize("seed", [3, [(1, 2, 3), (4,), 5]], ids=["one for all", "a list"])
def test_a_stream_replays_a_request_by_the_seed_that_its_result_holds(seed):
    decoder = SpeculativeDecoder(TabularLM.random(8, 1, 0), PromptLookup(3))
    prompts, sampling = [[1], [2, 3], [4]], SamplingParams(temperature=1.0)
    result = decoder.generate(prompts, 12, sampling, seed)
    for prompt, one, tokens in zip(prompts, result.seeds, result.tokens, strict=True):
        # An int stands for (int, 0), as in generate; in a list it is used as it is.
        replayed = decoder.stream(prompt, 12, sampling, seed=[one] if isinstance(one, int) else one)
        assert [token for event in replayed for token in event.tokens] == tokens
    assert len({tuple(tokens) for tokens in result.tokens}) == 3


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        ((1, 0.5), r"seed\[0\] is \(1, 0.5\)"),
        ([1, 2], "seed has 2 entries for 1 prompts"),
        (0.5, "seed=0.5 must be an int"),
    ],
)
def test_a_stream_refuses_what_is_no_seed(seed, fault):
    with pytest.raises(ValueError, match=fault):
        SpeculativeDecoder(Counting()).stream([0], 3, seed=seed)


def test_stream_events_carry_tokens_and_where_they_came_from():
    events = list(SpeculativeDecoder(Counting(pieces=LETTERS), guessing(3, num_right=2)).stream("a", 7))
    assert [event.tokens for event in events] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [event.provenance for event in events] == [["draft"] * 2 + ["recovered"]] * 2 + [["bonus"]]
    assert [event.text for event in events] == ["bcd", "efg", "h"]
    assert [event.finish_reason for event in events] == [None, None, "length"]
    plain = list(SpeculativeDecoder(Counting()).stream([0], 2))
    assert [(event.tokens, event.provenance, event.text) for event in plain] == [
        ([1], ["bonus"], ""),
        ([2], ["bonus"], ""),
    ]


def test_a_stream_of_nothing_has_no_events_and_bad_arguments_raise_at_the_call():
    decoder = SpeculativeDecoder(Counting())
    assert list(decoder.stream([0], 0)) == []
    with pytest.raises(ValueError, match="empty"):
        decoder.stream([], 3)


@pytest.mark.parametrize("max_new_tokens", [0, 3])
def test_a_stream_that_was_read_to_its_end_has_closed_its_session(max_new_tokens, monkeypatch):
    closed = []
    monkeypatch.setattr(NoDraft, "close", lambda self: closed.append(self))
    assert len(list(SpeculativeDecoder(Counting()).stream([0], max_new_tokens))) == max_new_tokens
    assert closed


def test_finished_rows_are_replaced_at_once():
    decoder = SpeculativeDecoder(Counting(eos_id=9))
    state = decoder.start([[8], [3], [7], [6], [1]], 20, batch_size=2)
    in_flight = []
    while state.has_work:
        state, info = decoder.step(state)
        in_flight.append(info.requests.tolist())
    assert in_flight == [[0, 1], [2, 1], [2, 1], [3, 1], [3, 1], [3, 1], *in_flight[6:]]
    assert in_flight[6:] == [[4]] * 8
    assert decoder.finish(state).tokens == [counts(first + 1, 9 - first) for first in (8, 3, 7, 6, 1)]


def test_hundreds_of_prompts_go_through_a_few_slots():
    prompts = [counts(i, 1 + i % 7) for i in range(300)]
    result = run(guessing(4, num_right=3), prompts, 9, Counting(eos_id=0), batch_size=7)
    for prompt, tokens in zip(prompts, result.tokens, strict=True):
        expected = counts(prompt[-1] + 1, 9)
        assert tokens == (expected[: expected.index(0) + 1] if 0 in expected else expected)


def test_a_lossy_rule_and_a_model_without_the_guarantee_say_so():
    class Lossy:
        name, lossless, trees, coupled, native_judge = "typical(0.3)", False, False, False, None
        __call__ = staticmethod(lambda draft, laws: RULES["standard"](draft, laws))

    assert SpeculativeDecoder(Counting(), None, Lossy()).generate([[1]], 2).exactness == "lossy: typical(0.3)"
    oracle = Counting()
    oracle.bitwise = False
    assert SpeculativeDecoder(oracle).generate([[1]], 2).exactness == "exact up to numerics"


@all_sources
def test_ids_that_compiled_code_compares_give_what_the_rule_gives(source):
    class Asked:
        name, lossless, trees, coupled, native_judge = "standard", True, False, False, None
        __call__ = staticmethod(lambda draft, laws: RULES["standard"](draft, laws))

    prompts = [[0], [3, 9], [15]]
    asked, compared = (
        SpeculativeDecoder(Counting(eos_id=2), source, rule).generate(prompts, 11, batch_size=2)
        for rule in (Asked(), RULES["standard"])
    )
    assert asked.tokens == compared.tokens
    own, other = asked.records.columns(), compared.records.columns()
    assert {n: v for n, v in own.items() if "seconds" not in n} == {
        n: v for n, v in other.items() if "seconds" not in n
    }


def test_a_source_may_write_into_its_tensors_again_and_into_what_it_is_told():
    class Reusing(MemorylessSession):
        def __init__(self):
            super().__init__(Fixed(3), torch.device("cpu"))
            self.tokens, self.sizes, self.calls = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1).long(), 0

        def draft(self, rows, context, limits, randomness):
            self.calls += 1
            self.sizes[:] = torch.from_numpy(np.minimum(limits, 1 + self.calls % 3))
            last = context.pending
            last += 1  # as a source does that walks on from there
            context.ids[:] = 0
            return Draft(self.tokens, self.sizes)

        def sync(self, rows, keep, new_ids, scores):
            new_ids[new_ids < 0] = 0
            self.sizes[:] = 0

    source = guessing(3)
    source.open = lambda *_: Reusing()
    result = run(source, [[5]], 9)
    assert result.tokens == [counts(6, 9)]
    assert result.records.columns()["draft_depth"][:3] == [2, 3, 1]
    assert [token for row in result.records.columns()["tokens"] for token in row] == result.tokens[0]
    asked = {"sampling": SamplingParams(frequency_penalty=30.0), "oracle": TabularLM(TABLE)}
    assert run(source, [[1]], 9, **asked).tokens == run(None, [[1]], 9, **asked).tokens


def test_all_that_a_source_does_counts_as_drafting():
    spent = {"propose": 0.25, "sync": 0.5}

    class Slow(WatchedSession):
        def propose(self, *told):
            clock.spend(spent["propose"])
            return self.inner.propose(*told)

        def sync(self, *told):
            clock.spend(spent["sync"])
            self.inner.sync(*told)

    with clock_of(engine_decoder, engine_state, engine_result) as clock:
        stats = run(WatchedSource(guessing(3), lambda session, *_: Slow(session)), [[5], [6]], 9).stats
    assert stats.seconds["propose"] == sum(spent.values()) * stats.target_calls == stats.total_seconds


def test_a_rule_that_does_not_say_what_judges_it_is_refused():
    class Older:
        name, lossless, trees, coupled = "older", True, False, False
        __call__ = staticmethod(lambda draft, laws: RULES["standard"](draft, laws))

    with pytest.raises(ValueError, match=r"rule Older lacks native_judge: derive it from specdec.Rule, or declare"):
        SpeculativeDecoder(Counting(), None, Older())


@pytest.mark.parametrize(("length", "claim"), [(127, "exact"), (128, "exact up to numerics")])
def test_a_pass_beyond_the_nodes_that_bits_are_promised_for_is_not_called_exact(length, claim):
    assert run(guessing(length), [[1]], 2).exactness == claim


def test_a_list_of_seeds_is_used_as_it_is():
    decoder = SpeculativeDecoder(TabularLM(TABLE), Chains(TABLE, 2))
    sampling = SamplingParams(temperature=1.0)
    result = decoder.generate([[1], [1], [1]], 30, sampling, [5, (5,), 6])
    assert result.seeds == [5, (5,), 6]
    assert result.tokens[0] == result.tokens[1] != result.tokens[2]
    by_number = decoder.generate([[1], [1]], 30, sampling, 3)
    assert by_number.seeds == [(3, 0), (3, 1)]
    assert by_number.tokens[0] != by_number.tokens[1], "requests share no randomness"
    assert by_number.tokens == decoder.generate([[1], [1]], 30, sampling, [(3, 0), (3, 1)]).tokens


def test_a_run_that_is_not_over_has_no_result():
    decoder = SpeculativeDecoder(Counting())
    state, _ = decoder.step(decoder.start([[1], [2]], 2, batch_size=1))
    with pytest.raises(ValueError, match="state has work left: call step"):
        decoder.finish(state)


@pytest.mark.parametrize("backend", ["tabular", "eager", "native", "graphed"])
def test_an_oracle_reads_what_it_is_given_and_writes_nothing(backend):
    if backend == "native":
        needed_native()
    makes = {
        "eager": lambda m: m.pack(),
        "native": NativeTransformer,
        "graphed": lambda m: GraphedTransformer(m.pack()),
    }
    tiny = tiny_unpacked(dtype=torch.float32).eval().requires_grad_(False)
    oracle = TabularLM(TABLE) if backend == "tabular" else makes[backend](tiny)
    given = torch.tensor([[1, 2, 0, 2]] * 2), torch.tensor([[-1, 0, 0, 1]] * 2), torch.tensor([4, 2])
    kept = [part.clone() for part in given]
    oracle.score(*given, oracle.new_cache(2, 16), np.arange(2))
    assert all(torch.equal(part, before) for part, before in zip(given, kept, strict=True))
