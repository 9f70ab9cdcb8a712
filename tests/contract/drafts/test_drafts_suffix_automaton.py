"""Drafts by suffixes: arguments, chains and trees by counts, and a store that is frozen while a run goes on."""

from threading import Thread

import pytest

import drafts
from drafts import Cascade, Merged, PromptLookup, Staged, SuffixAutomaton, suffix_automaton
from oracles.tabular import TabularLM
from specdec import Heuristic, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import close_session
from specdec.drafting.lengths import Entropy, Fixed
from specdec.exactness import check_draft, check_lossless
from tests.support.drafting.draft_rows import Rows, chains, draft_of
from tests.support.drafting.law_sources import MATES, MODEL, PENALTIES, PROMPT, TARGET

SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_draft_tokens": 2, "length": Fixed(2)}, "not both"),
        ({"length": Entropy()}, "a lookup has no laws"),
        ({"tokens_per_match": 0.0}, "tokens_per_match must be a finite number above 0, not 0.0"),
        ({"tokens_per_match": float("inf")}, "tokens_per_match must be a finite"),
        ({"min_ngram": 0}, "min_ngram must be an integer, 1 or more"),
        ({"min_confidence": 1.5}, r"min_confidence must be a number in \[0, 1\]"),
        ({"max_nodes": -1}, "max_nodes must be an integer, 1 or more"),
        ({"max_nodes": 5000}, "over the 1024 that a pass may hold"),
        ({"max_nodes": 4, "length": Fixed(2)}, "length ends chains"),
        ({"store_size": -1}, "store_size must be an integer, 0 or more"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SuffixAutomaton(**arguments)


def test_longer_matches_draft_more():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    drafted = draft_of(SuffixAutomaton(8), [[*text, 1], [*text, 1, 2], [*text, 1, 2, 3]])
    assert drafted == [[2, 3], [3, 4, 5, 6], [4, 5, 6, 7, 8, 9]]
    assert draft_of(SuffixAutomaton(8, tokens_per_match=0.5), [[*text, 1], [*text, 1, 2]]) == [[], [3]]
    assert draft_of(SuffixAutomaton(8, min_ngram=2), [[*text, 1], [*text, 1, 2]]) == [[], [3, 4, 5, 6]]
    assert draft_of(SuffixAutomaton(3, tokens_per_match=1e308), [[*text, 1, 2]]) == [[3, 4, 5]]


def test_the_most_frequent_continuation_wins_and_of_equal_ones_the_latest():
    assert draft_of(SuffixAutomaton(1), [[1, 2, 1, 2, 1, 3, 0, 1], [1, 2, 0, 1, 3, 0, 5, 1]]) == [[2], [3]]


def test_a_frequent_short_suffix_may_promise_more_than_a_long_one():
    """After "5 1" each of three ids came once; after "1" alone, 2 came four times of seven."""
    ids = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 5, 1, 7, 5, 1, 8, 5, 1, 9, 5, 1]
    long, short = SuffixAutomaton(2, min_ngram=2), SuffixAutomaton(2)
    assert draft_of(long, [ids])[0][0] == 9
    assert draft_of(short, [ids]) == [[2, 3]]
    ids = [1, 2, 3, 4, 6, 7, 8, 9, 0, 1, 2, 3, 5, 10, 11, 12, 13, 14, 20, 3, 4, 6, 21, 1, 2, 3]
    assert draft_of(short, [ids]) == [[4, 6]]
    assert draft_of(SuffixAutomaton(6), [ids]) == [[5, 10, 11, 12, 13, 14]]
    assert not short.offers.nested, "with room for more tokens the long one promises more"


def test_a_tree_holds_the_likeliest_paths_and_their_shares():
    ids = [1, 2, 5, 1, 2, 6, 1, 3, 1]
    rows = Rows(SuffixAutomaton(3, tokens_per_match=4, max_nodes=4))
    rows.seat({0: ids})
    draft = rows.propose({0: 9})
    nodes = list(zip(draft.parents[0].tolist(), draft.tokens[0].tolist(), draft.confidence[0].tolist(), strict=True))
    assert nodes == [(-1, 2, pytest.approx(2 / 3)), (-1, 3, pytest.approx(1 / 3)), (1, 1, 1.0), (0, 6, 0.5)]


def test_a_length_policy_ends_chains_by_their_shares():
    ids = [1, 2, 5, 1, 2, 6, 1, 2]
    length = Threshold(threshold=0.8, per_token=True, max_draft_tokens=4)
    assert draft_of(SuffixAutomaton(4, tokens_per_match=4), [ids]) == [[6, 1, 2]]
    assert [len(chain) for chain in draft_of(SuffixAutomaton(length=length, tokens_per_match=4), [ids])] == [1]
    assert draft_of(SuffixAutomaton(length=Heuristic(1)), [ids]) == [[6]]


def test_an_earlier_output_drafts_once_it_is_remembered():
    source, ids = SuffixAutomaton(4, store_size=20), [7, 1, 2]
    assert draft_of(source, [ids]) == [[]]
    source.remember([[1, 2, 3, 4, 5]])
    assert draft_of(source, [ids]) == [[3, 4, 5]]
    assert draft_of(source, [[9, 5]]) == [[]], "the end of an output is no token"


def test_the_store_is_bounded_and_the_newest_outputs_win():
    source = SuffixAutomaton(4, store_size=6)
    source.remember([[0, 1], [2, 3], [4, 5]])
    assert draft_of(source, [[0], [2], [4]]) == [[1], [3], [5]]
    source.remember([[1, 3, 5]])
    assert draft_of(source, [[0], [2], [4], [1]]) == [[], [], [5], [3, 5]]
    source.remember([[5, 5, 5, 5, 0, 1, 2, 3, 4, 2]])
    assert draft_of(source, [[5], [0], [1]]) == [[], [1, 2], [2, 3]]


def test_what_another_thread_has_remembered_while_a_run_began_is_there_for_the_next_one(monkeypatch):
    source, ids = SuffixAutomaton(4, store_size=20), [7, 1, 2]
    made = suffix_automaton.Automaton

    def interrupted(texts=()):
        monkeypatch.undo()
        other = Thread(target=source.remember, args=([[1, 2, 3, 4, 5]],))
        other.start()
        other.join()
        return made(texts)

    monkeypatch.setattr(suffix_automaton, "Automaton", interrupted)
    assert draft_of(source, [ids]) == [[]], "the store of a run is that of its beginning"
    assert draft_of(source, [ids]) == [[3, 4, 5]]


def test_what_cannot_be_remembered_is_refused():
    with pytest.raises(ValueError, match="store_size is 0"):
        SuffixAutomaton().remember([[1]])
    for outputs in ([[1, -1]], [1, 2], [[[1, 2]]], [[0.5, 1.0]]):
        with pytest.raises(ValueError, match="outputs must be lists of ids"):
            SuffixAutomaton(store_size=5).remember(outputs)
    source = SuffixAutomaton(store_size=5)
    source.remember([[1, 5], [2, 6]])
    with pytest.raises(ValueError, match="remembers id 6, and the oracle has 6 ids: give each vocabulary a source"):
        draft_of(source, [[1]])


def drafted(decoder, **options):
    """Return what each request drafted, by its committed length."""
    columns = decoder.generate([[1, 2], [0], [2, 1, 0], [1]], 14, SAMPLED, seed=4, **options).records.columns()
    return sorted(zip(columns["request"], columns["num_committed"], columns["num_drafted"], strict=True))


@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_outputs_are_remembered_when_the_run_has_ended_and_not_before(batch_size):
    source, fresh = SuffixAutomaton(4, store_size=30), SuffixAutomaton(4)
    decoder = SpeculativeDecoder(TARGET, source)
    assert drafted(decoder, batch_size=batch_size) == drafted(SpeculativeDecoder(TARGET, fresh))
    once = [list(output) for output in source._outputs]
    assert once == [list(row) for row in SpeculativeDecoder(TARGET, fresh).generate(
        [[1, 2], [0], [2, 1, 0], [1]], 14, SAMPLED, seed=4
    ).tokens][2:], "the last outputs that fit, in the order of the requests"  # fmt: skip
    assert drafted(decoder, batch_size=batch_size) != drafted(SpeculativeDecoder(TARGET, fresh))


def test_a_session_that_is_open_keeps_the_store_that_it_began_with():
    source = SuffixAutomaton(4, store_size=20)
    source.remember([[1, 2, 3]])
    rows = Rows(source)
    source.remember([[1, 2, 4], [1, 2, 4]])
    rows.seat({0: [1, 2]})
    assert chains(rows.propose({0: 9})) == [[3]]
    assert draft_of(source, [[1, 2]]) == [[4]]


def test_a_stream_is_remembered_if_it_is_read_to_its_end():
    source = SuffixAutomaton(4, store_size=30)
    decoder = SpeculativeDecoder(TARGET, source)
    stream = decoder.stream([1, 2], 8, SAMPLED)
    next(stream)
    stream.close()
    assert source._outputs == []
    tokens = [one for event in decoder.stream([1, 2], 8, SAMPLED) for one in event.tokens]
    assert source._outputs == [tokens]


def test_a_stream_is_remembered_by_whoever_has_its_last_event():
    source = SuffixAutomaton(4, store_size=30)
    tokens = []
    for event in SpeculativeDecoder(TARGET, source).stream([1, 2], 8, SAMPLED):
        tokens += event.tokens
        if event.finish_reason is not None:
            break
    assert source._outputs == [tokens]


def test_a_run_that_is_stepped_by_hand_is_remembered_when_it_is_finished():
    source = SuffixAutomaton(4, store_size=30)
    decoder = SpeculativeDecoder(TARGET, source)
    state = decoder.start([[1, 2]], 8, SAMPLED)
    while state.has_work:
        state, _ = decoder.step(state)
    assert source._outputs == []
    tokens = decoder.finish(state).tokens
    assert decoder.finish(state).tokens == tokens
    assert source._outputs == tokens


@pytest.mark.parametrize(
    "around",
    [
        lambda source: Merged([PromptLookup(2), source]),
        lambda source: Cascade([drafts.NGram.train([[0, 1, 2, 0]], 3, 2, progress=False), source]),
        lambda source: Staged(MODEL, source, 2),
    ],
    ids=["merged", "cascade", "staged"],
)
def test_outputs_are_remembered_inside_other_sources(around):
    source = SuffixAutomaton(2, store_size=30)
    outer = around(source)
    rule = "sample_and_match" if outer.offers.trees else "standard"
    tokens = SpeculativeDecoder(TARGET, outer, rule).generate([PROMPT, *MATES], 6, SAMPLED).tokens
    assert source._outputs == tokens


def test_provenance_names_it_beside_others():
    source = Merged([PromptLookup(2, match="first"), SuffixAutomaton(2, max_nodes=4)])
    decoder = SpeculativeDecoder(TARGET, source, "multi_draft")
    records = decoder.generate([[1, 2, 1, 0, 1, 2, 2, 1]], 30, SAMPLED).records
    assert {name for record in records for name in record["node_sources"]} == {"prompt_lookup", "suffix_automaton"}


def remembering(**arguments):
    source = SuffixAutomaton(store_size=40, **arguments)
    source.remember([[1, 2, 0, 0, 1], [2, 2, 1, 0], [0, 1, 1]])
    return source


FORMS = {"chain": {"num_draft_tokens": 2}, "tree": {"num_draft_tokens": 2, "max_nodes": 3, "tokens_per_match": 3}}


@pytest.mark.parametrize("form", FORMS)
def test_a_store_changes_no_draft_from_run_to_run_of_a_check(form):
    check_draft(remembering(**FORMS[form]), TabularLM.random(3, 2, 5), max_new_tokens=12)
    check_draft(remembering(**FORMS[form]), TabularLM.random(3, 2, 5), [[1, 2, 0], [2]], sampling=PENALTIES)


@pytest.mark.parametrize(
    ("form", "rule"),
    [("chain", "standard"), *((form, rule) for form in FORMS for rule in ("multi_draft", "sample_and_match"))],
)
def test_the_output_law_is_the_oracles_with_a_store(form, rule):
    source = remembering(**FORMS[form])
    check_lossless(SpeculativeDecoder(TARGET, source, rule), PROMPT, 3, PENALTIES, mates=MATES)
    assert len(source._outputs) == 3


def test_a_session_of_another_base_need_not_say_what_it_leaves():
    class Session:
        def begin(self, rows, prompts, scores):
            pass

        sync = end = propose = begin

    close_session(Session())
    with pytest.raises(AttributeError, match="no attribute 'closed'"):
        close_session(type("Broken", (Session,), {"close": lambda self: self.closed})())
