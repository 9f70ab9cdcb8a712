"""A source that breaks its contract is named, with the request and the fault, before it can bend the output."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from oracles.tabular import TabularLM
from specdec import Draft, Laws, Offers, SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.contracts import DraftSession, Needs
from specdec.verify import RULES

SIZE = 5


@dataclass(frozen=True)
class Broken(DraftSession):
    """Draft the same tokens for every row that has room for them, with whatever else is asked for."""

    tokens: list[int]
    rest: dict[str, Any]
    offers: Offers = field(default_factory=lambda: Offers(trees=True, laws=True, max_depth=3, max_nodes=3))
    name: str = "broken"
    needs: Needs = field(default_factory=Needs)
    vocab_size: None = None

    def open(self, oracle, num_rows, capacity):
        return self

    def propose(self, rows, context, budget, randomness):
        size = torch.from_numpy(len(self.tokens) * (budget.max_depth >= 3))
        fields = {name: torch.as_tensor(value).repeat(len(rows), 1) for name, value in self.rest.items()}
        if "probs" in fields:
            fields["laws"] = Laws.from_probs(fields.pop("probs").view(len(rows), len(self.tokens), SIZE))
        size = fields.pop("num_nodes").flatten() if "num_nodes" in fields else size
        return Draft(torch.tensor([self.tokens] * len(rows)), size, **fields)


def law(*probs):
    return {"probs": [[*probs]]}


FAULTS = {
    "more than offered": ([1, 1, 1, 1], {}, "4 nodes a row are over the 3 of offers.max_nodes"),
    "half as wide": ([1, 1], {"parents": [-1]}, r"shapes for 2 rows: {'parents': \(2, 1\)}"),
    "narrow ids": ([1], {"parents": torch.tensor([-1], dtype=torch.int32)}, r"must be {'parents': torch\.int64}"),
    "narrow sources": ([1], {"source": torch.tensor([0], dtype=torch.int32)}, r"must be {'source': torch\.int64}"),
    "counts for scouts": ([1], {"is_scout": torch.tensor([0])}, r"must be {'is_scout': torch\.bool}"),
    "an id too high": ([1, 5], {}, r"id 5 of node 1, padding included, must lie in 0\.\.4"),
    "a negative id": ([-1], {}, r"id -1 of node 0, padding included, must lie in 0\.\.4"),
    "fewer than none": ([1], {"num_nodes": [-1]}, r"request 0: num_nodes must lie in 0\.\.1"),
    "more than there are": ([1], {"num_nodes": [2]}, r"request 0: num_nodes must lie in 0\.\.1"),
    "a later parent": ([1, 2], {"parents": [1, -1]}, "must be -1 or a smaller index"),
    "its own parent": ([1, 2], {"parents": [0, -1]}, "must be -1 or a smaller index"),
    "below a scout": ([1, 2], {"is_scout": [True, False]}, "a verified node hangs on a scout"),
    "nameless source": ([1], {"source": [3]}, r"source must lie in 0\.\.0"),
    "negative source": ([1], {"source": [-1]}, r"source must lie in 0\.\.0"),
    "law of nan": ([1], law(*[torch.nan] * 5), "law declared for draft node 0 does not sum to 1 .or holds NaN"),
    "law with one nan": ([1], law(torch.nan, 1.0, 0.0, 0.0, 0.0), "law declared for draft node 0"),
    "counts for a law": ([1], law(1.0, 2.0, 3.0, 1.0, 1.0), "law declared for draft node 0"),
    "law of another token": ([1], law(1.0, 0.0, 0.0, 0.0, 0.0), "law declared for draft node 0"),
}


@pytest.mark.parametrize("rule", ["sample_and_match", "coupled"])
@pytest.mark.parametrize(("tokens", "rest", "message"), FAULTS.values(), ids=FAULTS)
def test_a_broken_draft_is_named(tokens, rest, message, rule):
    decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), Broken(tokens, rest), rule)
    with pytest.raises(ValueError, match=f"draft 'broken'.*{message}"):
        decoder.generate([[1], [2, 3]], 6, SamplingParams(temperature=1.0))


def test_laws_that_would_be_taken_for_certain_acceptance_are_refused_by_the_rule_that_reads_them():
    chain = Broken([1], law(*[torch.nan] * 5), Offers(laws=True, max_depth=3, max_nodes=3))
    with pytest.raises(ValueError, match="law declared for draft node 0"):
        SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), chain).generate([[1]], 6, SamplingParams(temperature=1.0))


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("parents", [[5, -1], [-5, -1]])
def test_a_parent_that_is_none_is_named_where_penalties_read_paths(parents, kernels):
    source = Broken([1, 2], {"parents": parents})
    decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), source, "sample_and_match", kernels=kernels)
    with pytest.raises(ValueError, match=r"draft 'broken'.*must be -1 or a smaller index"):
        decoder.generate([[1]], 6, SamplingParams(temperature=1.0, repetition_penalty=1.2))


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("width", [1, SIZE - 1, SIZE + 1])
def test_laws_over_another_vocabulary_are_named(width, kernels):
    laws = Laws.from_probs(torch.full((1, 1, width), 1 / width))

    class Padded(Broken):
        def propose(self, rows, context, budget, randomness):
            return Draft(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), laws=laws)

    chain = Padded([0], {}, Offers(laws=True, max_depth=1, max_nodes=1))
    decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), chain, kernels=kernels)
    said = rf"laws\.table \(1, {width}\) must hold a probability for each of the oracle's 5 ids"
    with pytest.raises(ValueError, match=f"draft 'broken' is malformed: {said}"):
        decoder.generate([[1]], 6, SamplingParams(temperature=1.0))


@pytest.mark.parametrize("budget", [None, SharedBudget(3)], ids=["alone", "shared"])
def test_ids_and_indices_beyond_the_table_of_laws_are_named_whoever_reads_them_first(budget):
    even = torch.full((1, SIZE), 1 / SIZE)
    faults = (
        (SIZE, 0, even, "id 5 of node 0"),
        (-1, 0, even, "id -1 of node 0"),
        (1, 1, even, "laws.index of draft node 0, padding included, is 1, and laws.table has 1 rows"),
        (4, 0, even[:, :3], r"laws.table \(1, 3\) must hold a probability for each"),
        (1, 0, even.unsqueeze(1), r"laws.table \(1, 1, 5\) must hold a probability for each"),
    )
    for token, index, table, said in faults:

        class Outside(Broken):
            def propose(self, rows, context, budget, randomness, token=token, index=index, table=table):
                tokens = torch.tensor([[token]])
                return Draft(tokens, torch.tensor([1]), laws=Laws(table, torch.tensor([[index]]), tokens))

        chain = Outside([1], {}, Offers(laws=True, max_depth=1, max_nodes=1))
        decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), chain, budget=budget)
        with pytest.raises(ValueError, match=f"draft 'broken'.*{said}"):
            decoder.generate([[1]], 6, SamplingParams(temperature=1.0))


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize(("excess", "is_law"), [(7e-5, True), (2e-4, False)])
def test_a_law_may_miss_its_sum_by_as_much_under_all_kernels(excess, is_law, kernels):
    chain = Broken([1], law(*[0.2 * (1 + excess)] * 5), Offers(laws=True, max_depth=3, max_nodes=3))
    decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), chain, kernels=kernels)
    with nullcontext() if is_law else pytest.raises(ValueError, match="law declared for draft node 0"):
        assert len(decoder.generate([[1]], 6, SamplingParams(temperature=1.0)).tokens[0]) == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_what_padding_holds_is_no_fault(rule, temperature):
    rest = {**law(*[torch.nan] * 5), "source": [7], "num_nodes": [0]}
    chain = Broken([1], rest, Offers(laws=True, max_depth=3, max_nodes=3))
    decoder = SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), chain, rule)
    assert len(decoder.generate([[1], [2]], 6, SamplingParams(temperature)).tokens[0]) == 6


@pytest.mark.parametrize("offers", [Offers(max_depth=3), Offers(max_depth=3, max_nodes=2), Offers(True, max_depth=1)])
def test_a_source_that_offers_paths_without_nodes_is_refused(offers):
    with pytest.raises(ValueError, match=r"'broken' offers paths of . tokens in at most . nodes"):
        SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), Broken([1], {}, offers), "sample_and_match")


def test_ids_without_a_dimension_for_nodes_are_named():
    class Flat(Broken):
        def propose(self, rows, context, budget, randomness):
            return Draft(torch.ones(len(rows), dtype=torch.int64), torch.ones(len(rows), dtype=torch.int64))

    with pytest.raises(ValueError, match=r"draft 'broken' is malformed: shapes for 1 rows: {'tokens': \(1,\)}"):
        SpeculativeDecoder(TabularLM.random(SIZE, 1, 0), Flat([1], {}), "traversal").generate([[1]], 6)
