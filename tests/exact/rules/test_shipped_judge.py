"""The enumerator proves what ships: verdicts come from the compiled judge, by numbers that the enumerator gives it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from specdec import Kary, Paths, SamplingParams, SpeculativeDecoder
from specdec.contracts import Oracle
from specdec.engine.verdict import Verifier
from specdec.exactness import oracle_law, output_law, total_variation
from specdec.exactness.breakpoints import Breakpoints, invert
from specdec.verify import RULES
from tests.support.backends import needed_kernels
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import chosen

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "adjusted": SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4),
}

needed_kernels()


class World(NamedTuple):
    """An oracle, a model that drafts for it, and how far from the oracle's law the output's may be."""

    oracle: Oracle
    model: Oracle
    near: float


WORLDS = {
    dtype: World(tiny_transformer(3, dtype, 4), tiny_transformer(3, dtype, 5), near)
    for dtype, near in ((torch.float64, 1e-12), (torch.float32, 1e-6))
}
SOURCES = {
    "lookup": lambda model: PromptLookup(2),
    "chain": lambda model: SmallTransformer(model, 2),
    "greedy chain": lambda model: SmallTransformer(model, 2, temperature=0),
    "tree": lambda model: SmallTransformer(model, tree=Paths([(0, 0), (1,)])),
    "greedy tree": lambda model: SmallTransformer(model, tree=Kary(2, 2), temperature=0),
}
RUNS = {
    f"{source}, {rule}": (source, rule)
    for source in SOURCES
    for rule in RULES
    if RULES[rule].native_judge is not None
    if not RULES[rule].coupled and (RULES[rule].trees or "tree" not in source)
}
KINDS = {
    "float64": (torch.float64, "plain"),
    "float64 adjusted": (torch.float64, "adjusted"),
    "float32": (torch.float32, "plain"),
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count verdicts by who gave them, as results tell it."""
    judges: Counter[str] = Counter()
    verify = Verifier.__call__

    def counting(self: Verifier, *args: Any) -> Any:
        made = verify(self, *args)
        judges[made.judge] += 1
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Verifier, "__call__", counting)
        yield judges


# The quick part has every rule with every source, and either of them with every kind of numbers.
@chosen(
    {"source, rule": RUNS, "dtype, sampling": KINDS}, lambda run, kind: {run, *((kind, part) for part in RUNS[run])}
)
def test_the_law_is_the_oracles_by_the_compiled_judge_and_by_the_rule(source, rule, dtype, sampling):
    (oracle, model, near), sampling = WORLDS[dtype], SAMPLINGS[sampling]
    wanted = oracle_law(oracle, PROMPT, 3, sampling)
    for kernels, judged_by in (("native", f"native: {rule}"), ("reference", rule)):
        decoder = SpeculativeDecoder(oracle, SOURCES[source](model), rule, kernels=kernels)
        with counted() as judges:
            law = output_law(decoder, PROMPT, 3, sampling, mates=MATES)
        assert total_variation(law, wanted) < near
        assert set(judges) == {judged_by}
        assert judges[judged_by] >= 2
        assert decoder.generate([PROMPT], 3, sampling).judge == judged_by


class Scripted(NamedTuple):
    """An open verdict on one law, whose draws a function makes."""

    stops: Any
    following: Any
    draw: Any
    rule: str = "scripted"

    def law(self) -> Any:
        return self.stops, self.following

    def verify(self, rows: Any, uniforms: Any) -> Any:
        stops = self.draw(self.stops[rows], uniforms[:, 0], "stop")
        return stops, self.draw(self.following[rows, stops], uniforms[:, 1], "next")


LAW = np.array([[0.25, 0.0, 0.5, 0.25]]), np.array([[[0.3, 0.0, 0.4]] * 4])


def below(weights: Any, uniforms: Any) -> Any:
    """Draw the first id whose sum is not below the threshold: at a breakpoint, the one before it."""
    sums = weights.cumsum(1)
    return (sums >= uniforms[:, None] * sums[:, -1:]).argmax(1)


def test_a_draw_is_inverted_by_the_sum_that_exceeds_it():
    numbers = np.array([0.0, np.nextafter(0.25, 0), 0.25, 0.7, np.nextafter(0.75, 0), 0.75, 1 - 2**-53])
    assert invert(LAW[0].repeat(7, 0), numbers).tolist() == [0, 0, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("name", "node", "law"), [("stop", 2, [0.25, 0.0, 0.5, 0.25]), ("next", 0, [0.3, 0.0, 0.4])], ids=["stop", "next"]
)
def test_a_wrong_draw_is_named_with_its_number(name, node, law):
    Breakpoints().check(Scripted(*LAW, lambda weights, uniforms, _: invert(weights, uniforms)), *LAW)
    wrong = Scripted(*LAW, lambda weights, uniforms, what: (below if what == name else invert)(weights, uniforms))
    with pytest.raises(AssertionError) as caught:
        Breakpoints().check(wrong, *LAW)
    assert str(caught.value).startswith(f"rule 'scripted', row 0, node {node}: for the {name} the number ")
    assert str(law) in str(caught.value)


@pytest.mark.parametrize("stops", [[0.5, 0.25, 0.0, 0.0], [1.25, -0.25, 0.0, 0.0], [0.5, 0.5, np.nan, 0.0]], ids=str)
def test_stops_that_are_no_law_are_told(stops):
    law = np.array([stops]), LAW[1]
    with pytest.raises(AssertionError, match="rule 'scripted', row 0, node 0: the compiled judge has no law"):
        Breakpoints().check(Scripted(*law, lambda weights, uniforms, _: invert(weights, uniforms)), *law)


def test_a_stop_that_nothing_follows_is_told():
    law = np.array([[0.0, 1.0]]), np.array([[[0.0, 0.0], [0.0, 0.0]]])
    with pytest.raises(
        AssertionError, match=r"node 1: the compiled judge has no law: its stops are .*sums to .0.0, 0.0"
    ):
        Breakpoints().check(Scripted(*law, lambda weights, uniforms, _: invert(weights, uniforms)), *law)


def test_a_law_is_asked_about_once():
    asked = []

    def draw(weights: Any, uniforms: Any, what: str) -> Any:
        asked.append(what)
        return invert(weights, uniforms)

    breakpoints = Breakpoints()
    for _ in range(2):
        breakpoints.check(Scripted(*LAW, draw), *LAW)
    assert asked == ["stop", "next"]
    other = LAW[0], LAW[1] + 0.1
    breakpoints.check(Scripted(*other, draw), *other)
    assert len(asked) == 4
