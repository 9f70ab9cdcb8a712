"""Where outputs end, and text shown while more is coming: against decoding everything anew at every token."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders

from specdec.requests import Request, TextHolder, cut_text, first_eos, first_stop, stopping
from specdec.requests.stopping import cut_at_stop
from specdec.sampling import SamplingParams
from tests.support.models.counting import letters

# Words, single letters, and bytes of which three make a euro sign, two an e with an accent, and one the letter a.
PIECES = ("a", "b", "ab", "ba", "aab", "é", "<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>", "<0x61>", "<end>")
SILENT = PIECES.index("<end>")
TOKENIZER = letters(PIECES)
TOKENIZER.add_special_tokens([AddedToken("<end>", special=True)])
STOPS = ["b", "ab", "ba", "aaa", "abab", "bbab", "é", "aé", "€", "b€a", "babaabbabaab"]
# An unfinished or broken character reads as U+FFFD, one for each of its bytes.
BROKEN_STOPS = ["\ufffd", "\ufffdb", "a\ufffd", "\ufffd\ufffd", "é\ufffd"]

any_ids = st.lists(st.integers(0, len(PIECES) - 1), max_size=24)
UNITS = [[0], [1], [2], [3], [4], [5], [11], [SILENT], [6, 7], [8, 9, 10], [6, 7, 6, 7]]
# Whole characters, the last of which may lack bytes.
outputs = st.tuples(st.lists(st.sampled_from(UNITS), max_size=12), st.integers(0, 2)).map(
    lambda made: [i for unit in made[0] for i in unit][: -made[1] or None]
)
# Bytes in any order, special tokens among them.
byte_runs = st.lists(st.sampled_from([0, 1, SILENT, 6, 7, 8, 9, 10, 11]), max_size=24)
stop_lists = st.lists(st.sampled_from(STOPS + BROKEN_STOPS), max_size=3)
stop_id_lists = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=2)


def ids(*pieces):
    return [PIECES.index(piece) for piece in pieces]


def request(strings=(), sequences=()):
    return Request(np.array([0]), 99, SamplingParams(), tuple(strings), tuple(sequences), 0)


def slow_first_stop(output, strings, sequences):
    """Return how many ids stand when a stop is first complete, or None."""
    for end in range(1, len(output) + 1):
        text = TOKENIZER.decode(output[:end])
        if any(s in text for s in strings) or any(tuple(output[:end][-len(s) :]) == s for s in sequences):
            return end
    return None


def blocks_of(output, cuts):
    """Return the ends of successive blocks."""
    return sorted({min(c, len(output)) for c in cuts} | {len(output)})


def found_in_blocks(output, cuts, strings, sequences):
    """Return how many ids stand where the blocks are looked at one after the other, or None."""
    begin = 0
    for end in blocks_of(output, cuts):
        at = first_stop(request(strings, sequences), TOKENIZER, output[:end], end - begin)
        if at < end - begin:
            return begin + at + 1
        begin = end
    return None


cuts_of_blocks = st.lists(st.integers(1, 24), max_size=6)


@settings(max_examples=300, deadline=None)
@given(any_ids | outputs | byte_runs, cuts_of_blocks, stop_lists, stop_id_lists)
@example(ids("a", "<0xE2>", "<0x82>", "<0xAC>", "<end>", "<end>", "b"), [], ["\ufffdb"], [])
@example(ids("<0xE2>", "<0xC3>", "<end>", "<0xA9>"), [], ["é"], [])
@example(ids("a", "b", "<end>", "<end>", "<0xE2>", "<0x82>", "<0xAC>"), [], ["ab€"], [])
def test_the_first_stop_is_found_wherever_blocks_are_cut(output, cuts, strings, sequences):
    assert found_in_blocks(output, cuts, strings, sequences) == slow_first_stop(output, strings, sequences)


@settings(max_examples=200, deadline=None)
@given(any_ids | byte_runs, cuts_of_blocks, stop_lists)
def test_where_a_stop_falls_never_depends_on_the_blocks(output, cuts, strings):
    assert found_in_blocks(output, cuts, strings, []) == found_in_blocks(output, range(1, 25), strings, [])


@settings(max_examples=300, deadline=None)
@given(any_ids | outputs | byte_runs, st.lists(st.integers(1, 24), max_size=8), stop_lists)
@example(ids("<0xC3>", "<0xA9>", "<end>", "<0xE2>", "a"), [1, 2, 3, 4], [])
@example(ids("<0xC3>", "<0xA9>", "<end>", "<end>", "<0x82>"), [4], ["\ufffd\ufffd\ufffd"])
@example(ids("a", "<0x61>", "<0xA9>"), [1, 2], ["a\ufffd"])
def test_pieces_concatenate_to_the_final_text_and_are_never_taken_back(output, cuts, strings):
    stopped = found_in_blocks(output, range(1, 37), strings, [])
    output = output[:stopped]
    reason, ends = "length" if stopped is None else "stop", blocks_of(output, cuts)
    for window in (64, 2):  # of the last two ids alone, as of long texts
        with patch.object(stopping, "_WINDOW", window):
            holder, pieces = TextHolder(TOKENIZER, strings), []
            for end in ends:
                pieces.append(holder.push(output[:end], final=end == ends[-1]))
        assert "".join(pieces) == cut_text(TOKENIZER, output, strings, reason)


class Measured:
    """A tokenizer whose texts lose a blank at their beginning, as Llama's do; it counts the ids that it decodes."""

    def __init__(self):
        self.inner, self.decoded = letters(("▁a", "b", "▁", "<0xE2>", "<0x82>", "<0xAC>", "<end>")), 0
        self.inner.add_special_tokens([AddedToken("<end>", special=True)])
        blank = decoders.Replace("▁", " ")
        strip = decoders.Strip(" ", 1, 0)
        self.inner.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse(), strip])
        self.id_to_token = self.inner.id_to_token

    def decode(self, ids, **options):
        self.decoded += len(ids)
        return self.inner.decode(ids, **options)


def test_of_a_long_text_only_the_last_ids_are_decoded_anew():
    tokenizer, generator = Measured(), np.random.default_rng(1)
    units = [[0], [1], [2], [6], [3, 4, 5]]
    output = [i for unit in generator.integers(len(units), size=700) for i in units[unit]]
    holder = TextHolder(tokenizer, ["b" + " b" * 9, "a" + "€" * 9])
    pieces = [holder.push(output[:end], final=end == len(output)) for end in range(1, len(output) + 1)]
    assert "".join(pieces) == tokenizer.inner.decode(output)
    assert len(output) > 900
    assert tokenizer.decoded < 300 * len(output)


def test_no_id_is_forgotten_without_which_others_would_read_otherwise():
    """Before a blank that begins no text, in a word, in a character across a special id, in what may become a stop."""
    bytewise = letters(("a", "â", "Ĥ", "¬", "<end>"))  # the bytes of a euro sign
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens([AddedToken("<end>", special=True)])
    parted = letters(("a", "##b"))
    parted.decoder = decoders.WordPiece("##", cleanup=False)
    with patch.object(stopping, "_WINDOW", 2):
        for tokenizer, output in (
            (Measured().inner, [0, 6, 6, 6, 6, 6, 0, 1, 2, 1]),
            (parted, [0, 1, 1, 1, 1, 1, 1, 0]),
            (bytewise, [0, 0, 1, 2, 4, 3, 0]),
            (TOKENIZER, ids(*"babaabbabaaa")),
        ):
            holder = TextHolder(tokenizer, ["babaabbabaab", "##b"])
            pieces = [holder.push(output[:end], final=end == len(output)) for end in range(1, len(output) + 1)]
            assert "".join(pieces) == tokenizer.decode(output)


@pytest.mark.parametrize("split", range(1, 5))
def test_a_stop_across_a_silent_token_is_a_stop(split):
    output = [0] + [SILENT] * 12 + [1]
    assert first_stop(request(["ab"]), TOKENIZER, output, split) == split - 1


def test_the_window_of_a_stop_string_reaches_back_far_enough_and_no_stop_is_seen_twice():
    stop = "babaabbabaab"
    output = [0, *(PIECES.index(letter) for letter in stop), 1, 1]
    for num_new in range(3, len(output)):
        assert first_stop(request([stop]), TOKENIZER, output, num_new) == num_new - 3
    assert first_stop(request([stop]), TOKENIZER, output[:-3], 1) == 1


def test_unfinished_characters_and_possible_stops_are_held_back():
    holder = TextHolder(TOKENIZER, ["bab"])
    euro = [PIECES.index(piece) for piece in ("<0xE2>", "<0x82>", "<0xAC>")]
    ids = [0, *euro, 1, 0, 0]
    shown = [holder.push(ids[:n], final=False) for n in range(1, len(ids) + 1)]
    assert shown == ["a", "", "", "", "€", "", "baa"]
    assert holder.push([*ids, 1, 0], final=False) == ""
    assert holder.push([*ids, 1, 0, 1], final=True) == ""
    assert TextHolder(None, []).push([1, 2], final=True) == ""


def test_text_is_cut_at_the_earliest_stop_and_without_the_final_eos():
    assert cut_at_stop("xxabyyb", ["b", "ab"]) == "xx"
    assert cut_at_stop("xx", ["y"]) == "xx"
    assert cut_text(TOKENIZER, [0, 1, 1], [], "eos") == "ab"
    assert cut_text(TOKENIZER, [0, 1, 1], [], "length") == "abb"
    assert cut_text(TOKENIZER, [0, 1, 1], ["b"], "stop") == "a"


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), min_size=4, max_size=4), st.integers(1, 4), st.booleans()), min_size=1
    ),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_first_eos_looks_at_the_tokens_that_count_only(rows, eos_ids):
    blocks, counts, ignore = (np.array(column) for column in zip(*rows, strict=True))
    found = first_eos(blocks, counts, tuple(eos_ids), ignore)
    if not set(blocks.flat) & eos_ids:
        assert found is None
        return
    for (block, count, ignored), at in zip(rows, found, strict=True):
        hits = [i for i, token in enumerate(block[:count]) if token in eos_ids and not ignored]
        assert at == (hits[0] if hits else 4)
