"""The law that a compiled judge draws from, on chains and trees: that of the rules that declare it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specdec.contracts import Budget, Draft, VerificationRule
from specdec.kernels.compiled import NATIVE_DTYPES, Fault, FaultCode, NativeWalks, OtherKind, PackedDrafts, Way
from specdec.laws import Laws
from specdec.verify import RULES, BlockVerification, MultiDraft, Standard, Traversal
from tests.native.build import SHARED, builds
from tests.support.backends import needed_kernels
from tests.support.drafting.block_law import Shape, as_draft, drafts_of, target_probs
from tests.support.pairwise import pairwise

BUILDS = builds()
NEAR = {torch.float64: 1e-14, torch.float32: 2e-6}

needed_kernels()


class Case:
    """Drafts, and logits of a target: rows with bans, of one id, and greedy rows.

    Args:
        generator: of numbers.
        batch, width, size: B, N and V.
        dtype: of the logits.
        is_drawn: whether ids were drawn from laws of their own: some equal to the target's, some points.
        is_tree: any parents, scouts, two sources, ids drawn without their siblings'.
    """

    def __init__(
        self, generator: np.random.Generator, batch: int, width: int, size: int, dtype: torch.dtype,
        is_drawn: bool, is_tree: bool,
    ) -> None:  # fmt: skip
        logits = generator.normal(0, 1.5, (batch, width + 1, size))
        logits[generator.random(logits.shape) < 0.2] = -np.inf
        logits[:, :, generator.integers(size)] = 0.5
        self.logits, self.is_greedy = torch.from_numpy(logits).to(dtype), generator.random(batch) < 0.2
        target = self.target.dense(size).to(dtype)
        likely = target[:, :width].argmax(-1)
        tokens = torch.from_numpy(generator.integers(0, size, (batch, width)))
        tokens = torch.where(torch.from_numpy(generator.random((batch, width)) < 0.4), likely, tokens)
        draft = Draft(tokens, torch.from_numpy(generator.integers(0, width + 1, batch)))
        draft = self._draft_stepwise(generator, draft, target[:, :width]) if is_drawn else draft
        self.draft = self._grow(generator, draft, is_drawn) if is_tree else draft

    @property
    def target(self) -> Laws:
        """The target's laws: points in greedy rows."""
        table = self.logits.double().softmax(-1).to(self.logits.dtype).flatten(0, 1)
        index = torch.arange(len(table)).view(self.logits.shape[:2])
        return Laws(table, index.masked_fill(torch.from_numpy(self.is_greedy)[:, None], -1), self.logits.argmax(-1))

    def _draft_stepwise(self, generator: np.random.Generator, draft: Draft, target: torch.Tensor) -> Draft:
        batch, width, size = target.shape
        mixed = torch.from_numpy(generator.random(target.shape)).to(target.dtype) * (target + 0.01)
        same = torch.from_numpy(generator.random((batch, width, 1)) < 0.3)
        table = torch.where(same, target, mixed / mixed.sum(-1, keepdim=True)).flatten(0, 1)
        ids = [int(generator.choice(size, p=law / law.sum())) for law in table.double().numpy()]
        index = torch.arange(batch * width).view(batch, width)
        index = torch.where(torch.from_numpy(generator.random((batch, width)) < 0.2), -1, index)
        tokens = torch.where(index < 0, draft.tokens, torch.tensor(ids, dtype=torch.int64).view(batch, width))
        return replace(draft, tokens=tokens, laws=Laws(table, index, tokens))

    def _grow(self, generator: np.random.Generator, draft: Draft, is_drawn: bool) -> Draft:
        batch, width = draft.tokens.shape
        above = [[int(generator.integers(-1, node)) for node in range(width)] for _ in range(batch)]
        scouts, without, source = (generator.random((batch, width)) < p for p in (0.2, 0.7, 0.3))
        for row, node in np.ndindex(batch, width):  # no verified node stands below a scout
            scouts[row, node] |= above[row][node] >= 0 and scouts[row, above[row][node]]
        return replace(
            draft, parents=torch.tensor(above, dtype=torch.int64).reshape(batch, width),
            is_scout=torch.from_numpy(scouts), source=torch.from_numpy(source).long(), source_names=("a", "b"),
            without_replacement=torch.from_numpy(without) if is_drawn else None,
        )  # fmt: skip

    def law(self, way: Way, native: NativeWalks | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a compiled judge draws from; see ``PackedDrafts.law``."""
        draft, (batch, nodes, _) = self.draft, self.logits.shape
        scored = draft.after(np.zeros(batch, dtype=np.int64))
        most = np.full(batch, nodes)
        columns = [np.where(self.is_greedy, 0.0, 1.0), np.zeros(batch), np.ones(batch), np.zeros(batch)]
        laws = {"way": way, "filters": np.stack(columns), "tolerance": 1e-3}
        peaks, ids = self.logits.max(-1)
        native = native or needed_kernels().walks
        packed = PackedDrafts(native, draft, scored, Budget(most, most), np.zeros(batch, np.bool_), **laws)
        packed.take(ids.numpy(), peaks.numpy(), self.logits)
        stops, following = packed.law()
        return torch.from_numpy(stops), torch.from_numpy(following)


RULES_OF = [rule for rule in RULES.values() if rule.native_judge is not None and not rule.coupled]


@pairwise(
    {
        "rule": {rule.name: rule for rule in RULES_OF},
        "size": (1, 2, 33, 300),
        "is_drawn": {"chosen": False, "drawn": True},
        "dtype": NATIVE_DTYPES,
    }
)
def test_laws_are_those_of_the_rules(size: int, is_drawn: bool, rule: VerificationRule, dtype: torch.dtype):
    generator = np.random.default_rng(size)
    for at in range(24):
        batch, width = int(generator.integers(1, 5)), at % 8
        case = Case(generator, batch, width, size, dtype, is_drawn, rule.trees and at % 3 > 0)
        wanted, (stops, following) = rule(case.draft, case.target), case.law(Way(rule.native_judge))
        assert (stops - wanted.stop_probs).abs().max() <= NEAR[dtype]
        assert following.dtype == dtype
        for node in range(width + 1):
            is_reached = (node <= case.draft.num_nodes) & (wanted.stop_probs[:, node] > 0)
            law = wanted.next_law(torch.full((batch,), node)).dense(size)[is_reached].double()
            own = following[is_reached, node].double()
            torch.testing.assert_close(own / own.sum(-1, keepdim=True), law, rtol=0, atol=NEAR[dtype])
            assert torch.equal(own > 0, law > 0), "what is rejected or not allowed has probability exactly 0"


@pytest.mark.parametrize(("length", "accepted"), [(1, 2 / 3), (2, 11 / 9), (3, 5 / 3), (4, 166 / 81)])
def test_of_whole_chains_the_papers_numbers_are_accepted(length: int, accepted: float):
    p, q, shape = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3]), Shape(tuple(range(-1, length - 1)))
    drawn = list(drafts_of(shape, q))
    case: Any = Case.__new__(Case)
    case.draft, case.logits = as_draft(shape, drawn, size=2), target_probs(shape, drawn, p).log()
    case.is_greedy = np.zeros(len(drawn), dtype=np.bool_)
    stops, _ = case.law(Way.STANDING)
    depths = stops @ torch.arange(length + 2, dtype=torch.float64)
    assert sum(item.probability * float(depth) for item, depth in zip(drawn, depths, strict=True)) == pytest.approx(
        accepted, abs=1e-14
    )


TO_POINTS = [Standard(), MultiDraft(), BlockVerification(), Traversal()]


@pytest.mark.parametrize("rule", TO_POINTS, ids=lambda rule: rule.name)
def test_to_a_point_ids_are_compared_beside_rows_that_draw_too(rule):
    own = torch.tensor([[[1, 3e-8, 0, 0]], [[0.25, 0.25, 0.25, 0.25]]], dtype=torch.float32)
    target = Laws(torch.full((1, 4), 0.25), torch.tensor([[-1, -1], [0, 0]]), torch.zeros(2, 2, dtype=torch.int64))
    draft = Draft(torch.tensor([[1], [1]]), torch.tensor([1, 1]), laws=Laws.from_probs(own))
    assert rule(draft, target).stop_probs.tolist() == [[1, 0], [0, 1]]


def test_an_id_that_was_drawn_meets_a_law_that_is_nan():
    probs = torch.full((2, 3, 4), 0.25, dtype=torch.float64)
    probs[0, 1] = float("nan")
    drawn = Laws.from_probs(torch.full((2, 2, 4), 0.25, dtype=torch.float64))
    verdict = Standard()(Draft(torch.tensor([[1, 2], [1, 2]]), torch.tensor([2, 2]), laws=drawn), probs)
    assert verdict.stop_probs[0, 1:].isnan().all()
    assert not verdict.stop_probs[1].isnan().any()


@pytest.mark.parametrize("way", [Way.OFFERED, Way.STANDING])
def test_a_batch_gives_each_row_the_bits_that_it_has_alone(way):
    whole = Case(np.random.default_rng(5), 6, 4, 100, torch.float32, True, False)
    stops, following = whole.law(way)
    for row in range(6):
        own = slice(row, row + 1)
        part: Any = Case.__new__(Case)
        draft = whole.draft
        part.draft = Draft(draft.tokens[own], draft.num_nodes[own], laws=draft.laws[own])
        part.logits, part.is_greedy = whole.logits[own].contiguous(), whole.is_greedy[own]
        alone = part.law(way)
        assert torch.equal(alone[0], stops[own])
        assert torch.equal(alone[1], following[own])


@pytest.mark.parametrize("way", [Way.OFFERED, Way.MATCHED, Way.STANDING])
def test_every_build_gives_the_same_bits(way):
    cases = [Case(np.random.default_rng(6), 4, 5, 47, torch.float32, True, is_tree) for is_tree in (False, True)]
    for build in BUILDS:
        native = NativeWalks(build.library(SHARED / "laws.cpp"))
        for case in cases:
            for found, wanted in zip(case.law(way, native), case.law(way), strict=True):
                assert torch.equal(found, wanted)


def test_drafts_that_are_unsound_have_no_law():
    case = Case(np.random.default_rng(6), 2, 3, 5, torch.float64, True, False)
    case.law(Way.OFFERED)
    sound, laws, all_real = case.draft, case.draft.laws, torch.full((2,), 3)
    for wrong, code in (
        (replace(sound, tokens=torch.full_like(sound.tokens, 5)), FaultCode.TOKEN),
        (replace(sound, num_nodes=torch.tensor([4, 0])), FaultCode.COUNT),
        (replace(sound, parents=torch.tensor([[0, 0, 0]] * 2)), FaultCode.PARENT),
        (replace(sound, laws=Laws(laws.table * 2, laws.index, laws.point), num_nodes=all_real), FaultCode.LAW),
    ):
        case.draft = wrong
        with pytest.raises(Fault) as caught:
            case.law(Way.OFFERED)
        assert (caught.value.code, caught.value.row) == (code, 0)
    case.draft = replace(sound, laws=Laws(laws.table.float(), laws.index, laws.point))
    with pytest.raises(OtherKind, match=r"laws are of 5 ids in torch\.float32"):
        case.law(Way.OFFERED)
