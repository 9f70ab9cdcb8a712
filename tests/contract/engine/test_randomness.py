"""Draws: keyed, independent, never of an impossible id; and the coupling by position."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec.kernels.draws import first_above
from specdec.laws import Laws
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.support.calibration import LEVEL, p_value

pytestmark = pytest.mark.usefixtures("laws_of_each_backend")

P, Q = (0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)


def table(*rows):
    return Laws.from_probs(torch.tensor(rows, dtype=torch.float64))


def copies(law, number):
    """Return ``number`` entries that share one law."""
    zeros = torch.zeros(number, dtype=torch.int64)
    return Laws(torch.tensor([law], dtype=torch.float64), zeros, zeros)


def streams(number, committed=5):
    return Keyed.at(seed_keys([(1, i) for i in range(number)]), np.full(number, committed))


def test_keys_differ_by_seed_by_order_and_by_length_and_do_not_depend_on_neighbours():
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2, 1)]
    keys = seed_keys(seeds)
    assert len(set(keys.tolist())) == len(seeds)
    assert seed_keys(seeds[::-1]).tolist() == keys[::-1].tolist()
    assert seed_keys([5]).tolist() == seed_keys([(5,)]).tolist()
    with pytest.raises(OverflowError):  # it would be the key of another seed
        seed_keys([2**64])
    assert seed_keys([]).shape == (0,)


def test_no_two_paths_nodes_or_purposes_share_a_number():
    base = Keyed.at(seed_keys([3]), np.array([7]))
    paths = [base, Keyed.at(seed_keys([3]), np.array([8])), Keyed.at(seed_keys([4]), np.array([7]))]
    paths += [base.extend(part) for part in ("draft", "inner", 0, 1, 2, "0", "1")]
    paths += [base.extend("draft").extend(0), base.extend(0).extend("draft"), base.extend(0).extend(0)]
    uniform = Laws.from_probs(torch.full((1, 2**16), 2.0**-16, dtype=torch.float64))
    cells = itertools.product(paths, range(8), ("draft", "stop", "next"))
    draws = [int(stream.choose(uniform, node, 0, purpose)) for stream, node, purpose in cells]
    ranks = [base.choose(uniform, node, 0, "draft", k=3)[0].tolist() for node in range(8)]
    draws += [rank for row in ranks for rank in row[1:]]
    # 328 draws of 65,536 ids: 0.8 pairs fall together by chance; a shared stream would give eight at least.
    assert len(draws) - len(set(draws)) < 8


def test_a_draw_depends_on_its_own_row_only():
    rows = streams(6)
    law = torch.rand(6, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    laws = Laws.from_probs(law / law.sum(-1, keepdim=True))
    nodes = np.arange(3)
    whole = rows.choose(laws, nodes, nodes, "draft")
    for b, node in itertools.product(range(6), range(3)):
        one = rows.select(np.array([b])).choose(laws[b : b + 1, node], node, node, "draft")
        assert int(one) == int(whole[b, node])
    order = np.array([4, 1, 3])
    assert torch.equal(rows.select(order).choose(laws[order], nodes, nodes, "draft"), whole[order])


@pytest.mark.parametrize("stream", [streams, lambda n: Coupled(seed_keys([(1, i) for i in range(n)]), np.full(n, 5))])
@pytest.mark.parametrize("law", [P, Q, (0.0, 0.25, 0.0, 0.75)])
def test_draws_follow_their_law(stream, law):
    number = 20_000
    draws = stream(number).choose(copies(law, number), 0, 0, "draft")
    found = np.bincount(draws.numpy(), minlength=4)
    assert p_value("draws follow their law", found, np.array(law)) > LEVEL


@pytest.mark.parametrize("stream", [streams, lambda n: Coupled(seed_keys([(1, i) for i in range(n)]), np.full(n, 5))])
def test_draws_without_replacement_follow_successive_renormalisation(stream):
    number = 20_000
    draws = stream(number).choose(copies(P, number), 0, 0, "draft", k=2).numpy()
    pairs = list(itertools.permutations(range(4), 2))
    joint = np.array([P[i] * P[j] / (1 - P[i]) for i, j in pairs])
    found = np.array([(draws == pair).all(1).sum() for pair in pairs])
    assert found.sum() == number
    assert p_value("draws without replacement", found, joint) > LEVEL


@pytest.mark.parametrize("stream", [streams, lambda n: Coupled(seed_keys(list(range(n))), np.full(n, 5))])
def test_exhausted_supports_give_minus_one(stream):
    drawn = stream(2).choose(table((0.5, 0.0, 0.5), (0.0, 1.0, 0.0)), 0, 0, "draft", k=4)
    assert sorted(drawn[0, :2].tolist()) == [0, 2]
    assert drawn[0, 2:].tolist() == [-1, -1]
    assert drawn[1].tolist() == [1, -1, -1, -1]
    points = Laws.points(torch.tensor([3, 1]))
    assert stream(2).choose(points, 0, 0, "draft", k=2).tolist() == [[3, -1], [1, -1]]
    assert stream(2).choose(points, 0, 0, "draft").tolist() == [3, 1]


def test_point_masses_and_tables_mix():
    laws = Laws(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([-1, 0]), torch.tensor([1, 0]))
    assert streams(2).choose(laws, 0, 0, "draft").tolist() == [1, 2]


@pytest.mark.parametrize("weights", [(0.0, 0.3, 0.0), (0.0, 0.1, 0.0, 0.7, 0.2, 0.0), (1e-300, 0.0), (0.0, 1e-320)])
def test_no_number_draws_an_id_of_probability_zero(weights):
    law = torch.tensor([weights], dtype=torch.float64)
    for uniform in (0.0, 0.5, 1.0 - 2.0**-53, 1.0):
        assert law[0, int(first_above(law, torch.tensor([uniform], dtype=torch.float64)))] > 0, uniform


@settings(max_examples=100, deadline=None)
@example([1e-8] * 6, 1 / 3)
@given(st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.1, 0.3]), min_size=1, max_size=9).filter(any), st.floats(0, 1))
def test_inverse_cdf_agrees_with_a_plain_walk(weights, uniform):
    law, number = (torch.tensor([x], dtype=torch.float64) for x in (weights, uniform))
    drawn = int(first_above(law, number))
    running = np.cumsum(weights)
    # The threshold may fall on the border of two cells up to the rounding of the two running sums.
    threshold = uniform * running[-1]
    assert weights[drawn] > 0
    assert running[drawn] >= threshold * (1 - 1e-14)
    assert running[drawn] - weights[drawn] <= threshold + 1e-15


def test_uniforms_resolve_events_far_below_single_precision():
    # A first id of mass 2 ** -30 is invisible to uniforms of 24 bits: each would fall either side of it as one.
    tiny = 2.0**-30
    law = torch.tensor([[tiny, 1 - tiny]] * 2, dtype=torch.float64)
    assert first_above(law, torch.tensor([tiny * (1 - 2.0**-20), tiny], dtype=torch.float64)).tolist() == [0, 1]


def test_coupled_draws_depend_on_request_and_absolute_position_only():
    keys, law = seed_keys([1, 1, 2]), table(P, P, P)
    coupled = Coupled(keys, np.array([9, 7, 9]))
    first = coupled.choose(law, 0, 0, "draft")
    again = coupled.extend("inner").choose(law, 5, 0, "target")
    assert torch.equal(first, again)
    deeper = Coupled(keys, np.array([7, 7, 7])).choose(law, 3, np.array([2, 0, 2]), "next")
    assert torch.equal(deeper, first)
    differ = [
        [int(Coupled(seed_keys([seed]), np.array([at])).choose(table(P), 0, 0, "x")) for at in range(60)]
        for seed in (1, 2)
    ]
    assert differ[0] != differ[1]
    assert len(set(differ[0])) > 1


def test_coupled_acceptance_is_the_published_one():
    wanted = sum(1 / sum(max(P[y] / P[x], Q[y] / Q[x]) for y in range(4)) for x in range(4))
    assert abs(wanted - 0.8818) < 5e-5
    number = 40_000
    coupled = Coupled(seed_keys([(2, i) for i in range(number)]), np.zeros(number, dtype=np.int64))
    draws = [coupled.choose(copies(law, number), 0, 0, "draft") for law in (P, Q)]
    agree = int((draws[0] == draws[1]).sum())
    assert p_value("coupled draws agree", np.array([agree, number - agree]), np.array([wanted, 1 - wanted])) > LEVEL


def test_a_coupled_draw_does_not_depend_on_how_many_ids_other_laws_allow():
    # Few allowed ids are hashed one by one, many all together.
    narrow = torch.zeros(3, 64, dtype=torch.float64)
    narrow[:, [3, 17, 40]] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    wide = torch.full((3, 64), 1 / 64, dtype=torch.float64)
    streams = Coupled(seed_keys([1, 2, 3]), np.array([5, 9, 9]))
    alone = streams.choose(Laws.from_probs(narrow), 0, 0, "draft")
    among = streams.choose(Laws.from_probs(torch.stack([narrow, wide], dim=1)), 0, 0, "draft")[:, 0]
    assert alone.tolist() == among.tolist()
    assert set(alone.tolist()) <= {3, 17, 40}


@pytest.mark.parametrize(("kind", "is_race"), [(Keyed, False), (Coupled, True)])
def test_a_choose_of_its_own_loses_the_keys_unless_they_are_declared_anew(kind, is_race):
    class Same(kind):
        pass

    class Own(kind):
        def choose(self, *args, **options):
            return super().choose(*args, **options)

    class Declared(Own):
        draws_by_keys = True

        def choose(self, *args, **options):
            return super().choose(*args, **options)

    class Derived(Own):
        pass

    arrays = (np.array([3, 4]), np.array([7, 8])) if is_race else (np.array([3, 4]), (np.array([7, 8]),))
    wanted = kind(*arrays)
    for streams in (Same(*arrays), Declared(*arrays)):
        assert streams.verdict_numbers(2, None).tolist() == wanted.verdict_numbers(2, None).tolist()
        assert streams.chain_keys("draft").is_race == is_race
    for streams in (Own(*arrays), Derived(*arrays)):
        assert streams.verdict_numbers(2, None) is streams.chain_keys("draft") is None
    assert wanted.verdict_numbers(3, None) is None


def test_streams_with_keys_or_a_path_of_their_own_are_not_drawn_by_keys():
    for name in ("keys", "path"):
        other = property(lambda self, name=name: getattr(Keyed(self.seeds), name))
        streams = type("Own", (Keyed,), {name: other})(np.array([3, 4]), (np.array([7, 8]),))
        assert streams.verdict_numbers(2, None) is streams.chain_keys("draft") is None


def test_the_numbers_of_a_verdict_are_those_of_choose():
    streams = Keyed.at(seed_keys([1, (2, 3), 9]), np.array([4, 5, 6]))
    numbers = streams.uniforms("stop")
    edges = torch.from_numpy(np.stack([numbers, 1 - numbers], axis=1))  # the first id ends at the number itself
    assert streams.choose(Laws.from_probs(edges), 0, 0, "stop").tolist() == [1, 1, 1]
    edges = torch.from_numpy(np.stack([np.nextafter(numbers, 1), 1 - np.nextafter(numbers, 1)], axis=1))
    assert streams.choose(Laws.from_probs(edges), 0, 0, "stop").tolist() == [0, 0, 0]
    assert not set(numbers) & set(streams.uniforms("next"))
