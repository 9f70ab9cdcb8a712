"""Which tokens stand in a loop: the definition, on any ids."""

from hypothesis import given
from hypothesis import strategies as st

from oracles.factory.evaluation.loops import loop_mask
from tests.reference import loops as reference

# Few ids, so that loops are common; and texts made of repeated blocks, so that long ones are.
IDS = st.lists(st.integers(0, 2), max_size=60)
BLOCKS = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5)), max_size=6)


@given(IDS)
def test_it_is_the_definition(ids):
    assert loop_mask(ids).tolist() == reference.looped(ids, 16, 3)


@given(BLOCKS)
def test_it_is_the_definition_on_repeated_blocks(blocks):
    ids = [token for block, repeats in blocks for token in block * repeats]
    assert loop_mask(ids).tolist() == reference.looped(ids, 16, 3)


@given(IDS)
def test_reading_backwards_or_renaming_ids_changes_nothing(ids):
    marks = loop_mask(ids)
    assert (loop_mask(ids[::-1]) == marks[::-1]).all()
    assert (loop_mask([7 - token for token in ids]) == marks).all()


def test_two_repeats_or_a_block_that_is_too_long_are_no_loop():
    block = list(range(16))
    assert not loop_mask(block * 2).any()
    assert loop_mask(block * 3).all()
    assert not loop_mask([*block, 16] * 3).any()


def test_the_stretch_ends_where_the_repetition_does():
    # "1 2" stands three and a half times.
    assert loop_mask([9, 1, 2, 1, 2, 1, 2, 1, 9]).tolist() == [False, *[True] * 7, False]


def test_texts_without_tokens_have_no_loops():
    assert loop_mask([]).shape == (0,)
