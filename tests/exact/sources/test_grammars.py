"""Under a grammar the real engine has the law of the oracle masked by it, and the bugs put back move that law."""

import numpy as np
import pytest
import torch

import drafts
import specdec.sampling.masking
from specdec import Paths, SpeculativeDecoder
from specdec.exactness import oracle_law, output_law
from specdec.grammars import Grammar
from specdec.laws import Laws
from specdec.sampling import BatchWarping
from tests.support.pairwise import diagonal, pairwise
from tests.support.texts.grammars import LISTS, NESTED, WORDS, WRITTEN, Written, distance

PROMPT = [0, 1]
PLAIN, ALL = {}, {"temperature": 0.8, "top_p": 0.85, "top_k": 4, "repetition_penalty": 1.3, "logit_bias": {2: 0.6}}
TREE = Paths([(0, 0), (1,)])
SOURCES = {
    "plain": (lambda m: None, "standard"),
    "chain": (lambda m: drafts.SmallTransformer(m, 2), "standard"),
    "block": (lambda m: drafts.SmallTransformer(m, 2), "block"),
    "lookup": (lambda m: drafts.PromptLookup(3), "standard"),
    "forced": (lambda m: drafts.Forced(2), "standard"),
    "tree": (lambda m: drafts.SmallTransformer(m, tree=TREE), "multi_draft"),
    "upwards": (lambda m: drafts.SmallTransformer(m, tree=TREE), "traversal"),
    "merged": (
        lambda m: drafts.Merged([drafts.Forced(2, max_ids=2), drafts.SmallTransformer(m, 1)]),
        "sample_and_match",
    ),
    "staged": (lambda m: drafts.Staged(m, drafts.PromptLookup(1), 2), "standard"),
}


def off(case: Written, source: str, kernels: str | None, length: int = 4, **sampling) -> float:
    """Return how far the law of a decoder's output is from the slow reference's."""
    make, rule = SOURCES[source]
    decoder = SpeculativeDecoder(case.oracle(), make(case.oracle(1)), rule, kernels=kernels)
    found = output_law(decoder, PROMPT, length, case.sampling(**sampling), mates=[[0]])
    return distance(found, case.law(case.oracle(), PROMPT, length, **sampling))


@pairwise({"source": tuple(SOURCES), "sampling": {"plain": PLAIN, "all": ALL}, "kernels": (None, "reference")})
def test_the_law_is_that_of_the_masked_oracle(source, sampling, kernels):
    assert off(WORDS, source, kernels, 3 if source in ("tree", "upwards") else 4, **sampling) < 1e-12


# A mask is a function of the ids, whoever drafted them: all combinations are long.
@diagonal({"source": ("plain", "chain", "tree", "merged"), "case": {"nested": NESTED, "lists": LISTS}})
def test_so_it_is_for_rules_and_schemas(case, source):
    is_dear = source == "tree" or (case is NESTED and source in ("chain", "merged"))
    assert off(case, source, None, 3 if is_dear else 4) < 1e-12


@pytest.mark.parametrize("sampling", [{"min_new_tokens": 2}, {"ignore_eos": True}], ids=str)
@pytest.mark.parametrize("source", ["chain", "tree"])
def test_the_ends_of_texts_are_part_of_the_law(source, sampling):
    asked = {name: value for name, value in sampling.items() if name != "ignore_eos"}
    decoder = SpeculativeDecoder(WORDS.oracle(), SOURCES[source][0](WORDS.oracle(1)), SOURCES[source][1])
    found = output_law(decoder, PROMPT, 3, WORDS.sampling(**sampling))
    assert distance(found, WORDS.law(WORDS.oracle(), PROMPT, 3, **asked)) < 1e-12


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_the_law_that_users_compare_with_agrees_with_the_reference(case):
    found = oracle_law(case.oracle(), PROMPT, 3, case.sampling(**ALL))
    assert len(found) > 1
    assert distance(found, case.law(case.oracle(), PROMPT, 3, **ALL)) < 1e-12


def asks_for_the_mask_of_the_position_before(monkeypatch):
    original = BatchWarping.allowed_ids
    monkeypatch.setattr(BatchWarping, "allowed_ids", lambda self, row, path: original(self, row, path[:-1]))


def leaves_the_bonus_unmasked(monkeypatch):
    original = BatchWarping.allowed_ids
    deepest = 2  # what the drafts of the chain reach
    monkeypatch.setattr(
        BatchWarping, "allowed_ids", lambda self, row, path: None if path.size == deepest else original(self, row, path)
    )


def takes_nothing_back(monkeypatch):
    def go_to(self, ids):
        if self._matcher is None or self._matcher.is_error():
            self._matcher, self._read = self._start.deep_copy(), ids[:0]
        self._matcher.consume_tokens(ids[len(self._read) :].tolist())
        self._read = ids.copy()
        return self._matcher

    monkeypatch.setattr(Grammar, "_go_to", go_to)


def masks_after_top_p(monkeypatch):
    original, latest = BatchWarping.laws_of, []
    monkeypatch.setattr(specdec.sampling.masking.NodeMasks, "apply", lambda self, logits: latest.append(self))

    def laws_of(self, adjusted, temperature=None):
        laws = original(self, adjusted, temperature)
        if not latest:
            return laws
        masks, table = latest.pop(), laws.dense().clone()
        flat, allowed = table.view(-1, table.shape[-1]), torch.from_numpy(np.stack(masks.masks))
        kept = flat[masks.places] * allowed
        kept = torch.where(kept.sum(-1, keepdim=True) > 0, kept, allowed.double())
        flat[masks.places] = kept / kept.sum(-1, keepdim=True)
        return Laws.from_probs(table)

    monkeypatch.setattr(BatchWarping, "laws_of", laws_of)


def let_pass(self, output, num_new):
    """Look for an end alone: the engine would refuse what a mutant lets through, before the law can tell."""
    for new in range(num_new):
        place = self._place(output[: len(output) - num_new + new + 1], np.zeros(0, dtype=np.int64))
        if place is not None and place.is_over:
            return new
    return num_new


MUTANTS = {
    "the mask of the wrong position": asks_for_the_mask_of_the_position_before,
    "the bonus unmasked": leaves_the_bonus_unmasked,
    "the matcher not rolled back": takes_nothing_back,
    "the mask after top-p": masks_after_top_p,
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_moves_the_law(mutant, monkeypatch):
    asked = {"top_p": 0.6}
    assert off(WORDS, "chain", "reference", **asked) < 1e-12
    mutant(monkeypatch)
    monkeypatch.setattr(Grammar, "first_end", let_pass)
    assert off(WORDS, "chain", "reference", **asked) > 1e-3
