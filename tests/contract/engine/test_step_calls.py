"""How much of our Python one warmed step of one row goes through: files, own types, calls. What is new is named.

``sys.setprofile`` counts: a call is one of a function of ours, made by ``dataclass`` and the like or not, a
type is one of ours that is made, or whose method runs. The lists hold what a step may go through, the bounds how often.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles.native import NativeTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from specdec.kernels.compiled import PackedDrafts
from tests.support.backends import needed_native
from tests.support.models.tiny_models import tiny_transformer

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("specdec", "drafts", "oracles")


@dataclass
class Count:
    """What a step went through.

    Attributes:
        files: of ours, as they lie in the repository.
        types: of ours.
        calls: of each function of ours.
    """

    files: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        kind = owner if isinstance(owner, type) else type(owner)
        is_method = code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls", "_cls")
        is_type_of_ours = is_method and kind.__module__.split(".")[0] in PACKAGES
        if is_type_of_ours:
            self.types.add(kind.__qualname__)
        if module.split(".")[0] in PACKAGES or (module.startswith("namedtuple_") and is_type_of_ours):
            self.calls[code.co_qualname] += 1
            if Path(code.co_filename).is_relative_to(ROOT):
                self.files.add(str(Path(code.co_filename).relative_to(ROOT)))


def step_of(source: DraftSource, sampling: SamplingParams) -> Count:
    """Return what a step goes through that drafts three tokens, after three others."""
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    decoder = SpeculativeDecoder(oracle, source)
    state, steps = decoder.start([[1, 2, 3, 1, 2, 3, 1, 2]], 60, sampling), 0
    while state.has_work:
        found, steps = Count(), steps + 1
        sys.setprofile(found)
        try:
            state, info = decoder.step(state)
        finally:
            sys.setprofile(None)
        if steps > 3 and info.draft_depth.tolist() == [3]:
            assert state.judges == {"native: standard"}
            return found
    raise AssertionError("no step drafted three tokens")


def lookup() -> Count:
    return step_of(PromptLookup(3), SamplingParams(ignore_eos=True))


def model() -> Count:
    drafting = tiny_transformer(6, torch.float32, 2, NativeTransformer)
    return step_of(SmallTransformer(drafting, 3), SamplingParams(temperature=0.8, top_p=0.9, ignore_eos=True))


STEPS: dict[str, Callable[[], Count]] = {"greedy lookup": lookup, "sampled draft model": model}
CALLS = {"greedy lookup": 71, "sampled draft model": 120}
FILES: dict[str, str] = {
    "greedy lookup": """
        drafts/prompt_lookup.py oracles/native/host_memory.py oracles/native/native_model.py
        oracles/native/native_scoring.py oracles/native/threads.py oracles/transformer/pass_parts.py
        specdec/cache/slot_cache.py specdec/contracts/draft.py specdec/contracts/oracle.py specdec/contracts/source.py
        specdec/contracts/token_tree.py specdec/drafting/lengths/fixed.py specdec/drafting/lengths/policy.py
        specdec/drafting/sessions.py specdec/engine/checks.py specdec/engine/decoder.py specdec/engine/outcome.py
        specdec/engine/slots.py specdec/engine/state.py specdec/engine/verdict.py specdec/kernels/compiled/schema.py
        specdec/kernels/compiled/walks.py specdec/sampling/randomness.py specdec/sampling/warping.py
    """,
    "sampled draft model": """
        oracles/native/call_inputs.py oracles/native/chains.py oracles/native/host_memory.py
        oracles/native/native_model.py oracles/native/native_scoring.py oracles/native/threads.py
        oracles/transformer/pass_parts.py specdec/cache/slot_cache.py specdec/contracts/chaining.py
        specdec/contracts/draft.py specdec/contracts/oracle.py specdec/contracts/source.py
        specdec/contracts/token_tree.py specdec/drafting/chain_sampler.py specdec/drafting/lengths/fixed.py
        specdec/drafting/lengths/policy.py specdec/drafting/model.py specdec/drafting/model_source.py
        specdec/engine/checks.py specdec/engine/decoder.py specdec/engine/outcome.py specdec/engine/slots.py
        specdec/engine/state.py specdec/engine/verdict.py
        specdec/kernels/compiled/schema.py specdec/kernels/compiled/walks.py specdec/kernels/draws.py
        specdec/laws/laws.py specdec/sampling/randomness.py specdec/sampling/warping.py
    """,
}
TYPES: dict[str, str] = {
    "greedy lookup": """
        BatchWarping Budget Context Draft Fixed Frame Keyed NativeCache NativeModel NativeTransformer PackedDrafts
        Scores Slots SpeculativeDecoder State StepInfo StepOutcome Tree Verifier _Session
    """,
    "sampled draft model": """
        BatchWarping Budget Draws ChainKeys ChainSampler ChainSession Context Draft DraftModel Fixed Frame Keyed
        Laws NativeCache NativeModel NativeTransformer PackedDrafts Scores Slots SpeculativeDecoder State StepInfo
        StepOutcome Target Tree Verifier
    """,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_through_no_more_of_our_python_than_it_did(name: str) -> None:
    needed_native()
    found = STEPS[name]()
    assert found.files - {*FILES[name].split()} == set(), "files that a step did not go through"
    assert found.types - {*TYPES[name].split()} == set(), "types that a step did not need"
    assert found.calls.total() <= CALLS[name], f"more calls than before: {found.calls.most_common()}"


@pytest.mark.parametrize("name", STEPS)
def test_drafts_are_packed_before_the_pass_that_empties_the_caches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed_native()
    order: list[str] = []

    def noted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **named: Any) -> Any:
            order.append(what)
            return function(*args, **named)

        return note

    monkeypatch.setattr(PackedDrafts, "__init__", noted("packed", PackedDrafts.__init__))
    monkeypatch.setattr(NativeTransformer, "score", noted("scored", NativeTransformer.score))
    monkeypatch.setattr(PackedDrafts, "draw", noted("judged", PackedDrafts.draw))
    STEPS[name]()
    last = order[len(order) - order[::-1].index("scored") :]
    assert last == ["judged"], "after a pass, one call is left"
