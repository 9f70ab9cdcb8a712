"""Options of strategies: the draft model's own type of weights, and what drafts beside a lookup."""

from typing import Any

import pytest

import drafts
import oracles
from experiments.strategies import STRATEGIES

SHARED = {"oracle": "code", "device": None, "dtype": None, "backend": None, "weights": None, "temperature": 0.0}


def built(name: str, **given: Any) -> Any:
    strategy = STRATEGIES[name]
    own = {option.key: option.default for option in strategy.options}
    return strategy.build({**own, **SHARED, **given}, oracles.load("code-draft"))


def test_a_draft_model_has_weights_of_its_own_type():
    stored, rounded = (built("small_transformer", model_weights=kind).model for kind in (None, "int8"))
    assert rounded.weight_bytes < 0.7 * stored.weight_bytes
    assert built("small_transformer", weights="int8").model.weight_bytes == rounded.weight_bytes
    assert (
        built("small_transformer", weights="int8", model_weights="bfloat16").model.weight_bytes == stored.weight_bytes
    )


@pytest.mark.parametrize(("name", "kind"), [("merged", drafts.Merged), ("cascade", drafts.Cascade)])
def test_a_draft_model_may_stand_beside_the_lookup(name, kind):
    source = built(name, second="model", num_draft_tokens=3)
    assert isinstance(source, kind)
    assert [type(one) for one in source.members] == [drafts.PromptLookup, drafts.SmallTransformer]


@pytest.mark.parametrize(
    ("name", "option", "text"), [("cascade", "second", "lookahead"), ("tree", "model_weights", "fp8")]
)
def test_unknown_names_are_refused(name, option, text):
    (kind,) = (one.kind for one in STRATEGIES[name].options if one.key == option)
    with pytest.raises(ValueError, match=f"expected .*, got '{text}'"):
        kind(text)
