"""Warping against plain numpy: every step, their order, ties, and penalties along the paths of trees."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Draft, SamplingParams
from specdec.kernels import FILTERS, best_kernels
from specdec.kernels.filters import filter_top_k, keep_top_p
from specdec.sampling import ParameterTable, path_mask
from tests.reference.warping import filtered, penalised
from tests.support.drafting.warpings import warping_of

pytestmark = pytest.mark.usefixtures("laws_of_each_backend")

SIZE = 7
BEFORE = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_new_tokens")


def drafted(tokens, parents=None):
    """Return the draft of these tokens ``[B][N]``."""
    tokens = torch.as_tensor(tokens, dtype=torch.int64)
    counts = torch.full((len(tokens),), tokens.shape[1])
    return Draft(tokens, counts, None if parents is None else torch.as_tensor(parents))


NO_DRAFT = drafted([[]])


def wanted_law(logits, params, prompt, output, eos_ids=()):
    values = penalised(logits, prompt, output, eos_ids, **{name: getattr(params, name) for name in BEFORE})
    return filtered(values, **{name: getattr(params, name) for name in FILTERS})


def path_to(node, tokens, parents):
    """Return the draft tokens on the path to scoring node ``node``."""
    path = []
    while node > 0:
        path.insert(0, tokens[node - 1])
        node = parents[node - 1] + 1
    return path


VALUES = {
    "temperature": [0.0, 0.3, 1.0, 1.7],
    "top_k": [0, 1, 2, 3, SIZE, 50],
    "top_p": [0.21, 0.63, 0.97, 1.0],
    "min_p": [0.0, 0.07, 0.41, 1.0],
}
params_strategy = st.builds(
    SamplingParams,
    **{name: st.sampled_from(values) for name, values in VALUES.items()},
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.9]),
    presence_penalty=st.sampled_from([0.0, 0.8, -0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, SIZE - 2), st.sampled_from([-math.inf, -1.3, 2.2]), max_size=3),
    min_new_tokens=st.integers(0, 5),
)
rows_strategy = st.lists(
    st.tuples(
        params_strategy,
        st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=4),
        st.lists(st.integers(0, SIZE - 1), max_size=4),
        st.lists(st.integers(0, SIZE - 1), min_size=4, max_size=4),
        st.tuples(st.just(-1), *(st.integers(-1, i - 1) for i in range(1, 4))),
    ),
    min_size=1,
    max_size=4,
)


def test_every_filter_is_drawn_here_and_has_its_reference():
    assert set(VALUES) == set(FILTERS), "give each sampling parameter of laws.h a row in VALUES"
    known = tuple(inspect.signature(filtered).parameters)[1:]
    assert known == FILTERS, "filtered in tests/reference/warping.py takes the sampling parameters of laws.h in order"


@settings(max_examples=150, deadline=None)
@given(rows_strategy, st.integers(0, 2**31), st.booleans())
def test_every_node_of_every_row_has_the_law_of_plain_numpy(rows, seed, chains):
    params, prompts, outputs, tokens, parents = (list(column) for column in zip(*rows, strict=True))
    if chains:
        parents = [list(range(-1, 3))] * len(rows)
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), 5, SIZE)) * 2)
    before = logits.clone()
    warping = warping_of(params, prompts, outputs, eos_ids=(0, 3))
    laws = warping.laws(logits, drafted(tokens, None if chains else parents))
    assert torch.equal(logits, before), "the input is not changed"
    dense = laws.dense(SIZE).numpy()
    for b, (row, prompt, output) in enumerate(zip(params, prompts, outputs, strict=True)):
        for node in range(5):
            path = path_to(node, tokens[b], parents[b])
            wanted = wanted_law(logits[b, node].tolist(), row, prompt, output + path, (0, 3))
            assert np.abs(dense[b, node] - wanted).max() < 1e-12
            assert ((dense[b, node] == 0) == (wanted == 0)).all(), "what is dropped has probability exactly 0"


@settings(max_examples=40, deadline=None)
@given(rows_strategy, st.integers(0, 2**31))
def test_a_row_and_a_node_alone_have_the_bits_they_have_in_the_batch(rows, seed):
    params, prompts, outputs, tokens, parents = (list(column) for column in zip(*rows, strict=True))
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), 5, SIZE)).astype(np.float32))
    warping = warping_of(params, prompts, outputs, eos_ids=(0, 3))
    whole = warping.laws(logits, drafted(tokens, parents)).dense(SIZE)
    for b in range(len(rows)):
        one = warping.select(np.array([b]))
        for node in range(5):
            at = torch.tensor([node])
            law = one.laws(logits[b : b + 1, at], drafted(tokens[b : b + 1], [parents[b]]), at)
            assert torch.equal(law.dense(SIZE)[0, 0].to(whole.dtype), whole[b, node])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_logits_have_equal_probabilities_and_top_k_keeps_all_ties(dtype):
    for size in range(2, 40):
        logits = torch.zeros(1, 1, size, dtype=dtype)
        logits[0, 0, size // 2] = -1.0
        params = [SamplingParams(temperature=0.7, top_k=1)]
        law = warping_of(params, [[0]], [[]]).laws(logits, NO_DRAFT).dense(size)[0, 0]
        assert law[size // 2] == 0, size
        assert len(law[law > 0].unique()) == 1, size
        assert int((law > 0).sum()) == size - 1


def test_greedy_takes_the_lowest_id_among_ties():
    logits = torch.tensor([[[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0]]])
    laws = warping_of([SamplingParams()], [[0]], [[]]).laws(logits, drafted([[0]]))
    assert laws.all_points
    assert laws.point.tolist() == [[1, 0]]


def test_a_near_tie_is_not_sampled_at_temperature_zero():
    logits = torch.tensor([[[1.0, 1.0 + 1e-6]]])
    laws = warping_of([SamplingParams()], [[0]], [[]]).laws(logits, NO_DRAFT)
    assert laws.dense(2).tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.25, {1}),
        (0.4375, {1, 0}),
        (0.5, {1, 0, 2}),
        (0.625, {1, 0, 2}),
        (0.63, {1, 0, 2, 3}),
        (0.99, {1, 0, 2, 3, 4, 5}),
        (1.0, set(range(7))),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it_lowest_id_first(top_p, kept):
    # Multiples of 1/16: sums are exact, so "reaches" is tested at equality.
    probs = torch.tensor([[3, 4, 3, 2, 2, 2, 0]], dtype=torch.float64) / 16
    keep = keep_top_p(probs, torch.tensor([top_p], dtype=torch.float64))
    assert set(torch.nonzero(keep[0]).flatten().tolist()) == kept


def test_top_p_keeps_the_same_ids_whether_few_or_many_are_needed():
    # Multiples of 2^-12 again; sets end within the best 128 ids, beyond them, and among equals on either side.
    size, total = 1000, 2**12
    generator = np.random.default_rng(0)
    weights = np.stack([generator.multinomial(total, generator.dirichlet(np.full(size, a))) for a in (0.01, 0.1, 1, 9)])
    probs = torch.from_numpy(weights / total)
    for top_p in (0.0625, 0.25, 0.5, 0.75, 0.9375):
        keep = keep_top_p(probs, torch.full((4,), top_p, dtype=torch.float64))
        for row, law in zip(keep, weights, strict=True):
            order = sorted(range(size), key=lambda i: (-law[i], i))
            reached = np.cumsum(law[order]) / total
            expected = set(order[: int((reached < top_p).sum()) + 1])
            assert set(row.nonzero().flatten().tolist()) == expected


def test_top_k_differs_per_row_and_zero_keeps_all():
    logits = torch.tensor([[[3.0, 2.0, 1.0, 0.0]]]).expand(4, 1, 4)
    counts = np.array([0, 1, 3, 9])
    kept = filter_top_k(logits, counts, torch.from_numpy(counts)).isfinite().sum(-1).flatten()
    assert kept.tolist() == [4, 1, 3, 4]


def test_the_largest_top_k_keeps_all():
    warping = warping_of([SamplingParams(temperature=1.0, top_k=2**63 - 1)], [[0]], [[]])
    logits = torch.randn(1, 1, SIZE, generator=torch.Generator().manual_seed(0))
    plain = warping_of([SamplingParams(temperature=1.0)], [[0]], [[]])
    assert torch.equal(warping.laws(logits, NO_DRAFT).dense(), plain.laws(logits, NO_DRAFT).dense())


def test_the_order_of_the_steps_is_the_documented_one():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    params = SamplingParams(temperature=2.0, top_k=3, top_p=0.7, min_p=0.8)
    law = warping_of([params], [[3]], [[]]).laws(torch.tensor([[logits]]), NO_DRAFT)
    # Hot: 2 : 1.732 : 1.414 : 1. After top-k the first two have 0.725 of three, of four they would have 0.607.
    # min_p 0.8 holds against the best of what is left; before top_p it would not differ, before heat it would.
    heated = np.sqrt([0.4, 0.3])
    assert np.abs(law.dense(4)[0, 0, :2].numpy() - heated / heated.sum()).max() < 1e-6
    assert law.dense(4)[0, 0, 2:].tolist() == [0.0, 0.0]


def test_minus_infinity_is_a_legal_bias_and_a_legal_logit():
    logits = torch.tensor([[[5.0, -math.inf, 1.0, 0.0]]])
    for params in (SamplingParams(logit_bias={0: -math.inf}), SamplingParams(logit_bias={0: -math.inf, 1: 3.0})):
        law = warping_of([params], [[1]], [[0, 1]]).laws(logits, NO_DRAFT)
        assert law.point.tolist() == [[2]]


def test_a_temperature_given_replaces_the_requests_own_and_nothing_else():
    logits = torch.tensor([[[1.0, 0.9, 0.0]], [[0.5, 0.0, 0.9]]])
    params = [SamplingParams(temperature=0.5, logit_bias={0: -math.inf}), SamplingParams()]
    warping, none = warping_of(params, [[0], [0]], [[], []]), drafted([[], []])
    assert warping.laws(logits, none, temperature=0.0).point.tolist() == [[1], [2]]
    hot = warping.laws(logits, none, temperature=2.0).dense(3)
    assert np.abs(hot[0, 0].numpy() - filtered([-math.inf, 0.9, 0.0], 2.0)).max() < 1e-6
    assert np.abs(hot[1, 0].numpy() - filtered([0.5, 0.0, 0.9], 2.0)).max() < 1e-6
    mixed = warping.laws(logits, none)
    assert mixed.index.tolist() == [[0], [-1]]
    assert mixed.point[1, 0] == 2


def test_laws_are_float32_at_least_and_float64_stays():
    warping = warping_of([SamplingParams(temperature=1.0, top_p=0.9, min_p=0.1, top_k=2)], [[0]], [[]])
    for dtype, wanted in [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2]:
        assert warping.laws(torch.zeros(1, 1, 4, dtype=dtype), NO_DRAFT).table.dtype == wanted


def test_eos_is_banned_along_a_path_until_enough_tokens_precede_it():
    warping = warping_of([SamplingParams(min_new_tokens=3)], [[2, 2, 2]], [[2]], eos_ids=(0,))
    logits = torch.tensor([5.0, 1.0, 0.0]).expand(1, 5, 3)
    tokens, parents = torch.tensor([[1, 1, 1, 1]]), torch.tensor([[-1, 0, -1, 1]])
    assert warping.laws(logits, drafted(tokens, parents)).point.tolist() == [[1, 1, 0, 1, 0]]


def test_path_mask_selects_nodes_and_forks_per_branch():
    tree = drafted([[0] * 4], [[-1, 0, 0, 2]]).tree
    mask = path_mask(tree, None)[0].long().tolist()
    assert mask == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    last = path_mask(tree, torch.tensor([4]))[0].long().tolist()
    assert last == [[1, 0, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_bias_at_the_lowest_temperature_is_a_law(dtype):
    """Quotients overflow in both; the rows at temperature 1 keep their bits."""
    logits = torch.tensor([[[1.0, 1e30, 1e30, -1e30]], [[1.0, 2.0, 3.0, -torch.inf]]], dtype=dtype)
    params = ParameterTable.of([SamplingParams(temperature=1e-300), SamplingParams(temperature=1.0)])
    probs = best_kernels().laws(logits, params)
    assert probs[0, 0].tolist() == [0, 0.5, 0.5, 0]
    assert torch.equal(probs[1:], best_kernels().laws(logits[1:], params.select(np.array([1]))))
    assert (probs[1] - logits[1].softmax(-1)).abs().max() < 1e-6


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1.0])
def test_all_parameters_at_their_largest_are_a_law(temperature):
    worst = {"temperature": temperature, "presence_penalty": -1e15, "frequency_penalty": -1e15}
    both = [
        SamplingParams(**worst, repetition_penalty=1e-15, logit_bias={3: 1e15}),
        SamplingParams(**worst, repetition_penalty=1e15, logit_bias=dict.fromkeys(range(SIZE), -1e15)),
    ]
    warping = warping_of(both, [[3], [1]], [[3] * 500, [3]])
    table = warping.laws(torch.zeros(2, 1, SIZE), drafted([[], []])).table
    assert table[0].tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert (table.sum(-1) - 1).abs().max() < 1e-6
