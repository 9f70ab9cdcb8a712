"""The page on heads works as it is written."""

from typing import Any

import numpy as np
import pytest
import torch

import drafts
import oracles
from oracles.factory.training.head_losses import LOSSES
from specdec import Paths, SamplingParams, SpeculativeDecoder
from specdec.contracts import Scores
from specdec.exactness import check_draft, check_lossless
from tests.support.models.eagle3_heads import Layout, write_head
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pages import run_recipe


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the code of the page from top to bottom, beside a folder with a head, and return its names."""
    folder = tmp_path_factory.mktemp("page")
    layout = Layout(written=(3, 5, 8, 13), own_embedding=False, layer={"hidden_size": 384, "head_dim": 96})
    write_head(folder / "a-head", oracles.load("code"), layout, dtype=torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.manual_seed(0)
        return run_recipe("heads.md", 4)


def test_the_pages_code_runs(names):
    assert len(names["result"].tokens[0]) == 16
    assert names["result"].stats.num_drafted > 0


def test_its_own_training_teaches(names):
    assert names["after"]["drawn_1"] > names["before"]["drawn_1"] + 0.1
    prompt = ["def add(a, b):\n    return a + b\n" * 4]
    taught, plain = (names[name].generate(prompt, 24) for name in ("trained", "own"))
    assert taught.tokens == plain.tokens
    assert taught.stats.num_accepted > plain.stats.num_accepted


@pytest.fixture(scope="module", autouse=True)
def _losses():
    """Leave the registry of losses as it was."""
    whole = dict(LOSSES)
    yield
    LOSSES.clear()
    LOSSES.update(whole)


@pytest.mark.parametrize("shape", [None, Paths([(0, 0), (1,)])], ids=["chains", "trees"])
def test_its_own_head_conforms(names, shape):
    oracle = tiny_transformer()
    head = names["OneLayer"](oracle, 1)
    source = drafts.Eagle3(head, 2) if shape is None else drafts.Eagle3(head, tree=shape)
    check_draft(source, oracle, max_new_tokens=6)
    blocks = drafts.BlockDrafter(names["TwoAhead"](oracle, 1), tree=shape)
    check_draft(blocks, oracle, max_new_tokens=6)
    decoder = SpeculativeDecoder(oracle, blocks, "standard" if shape is None else "multi_draft")
    check_lossless(decoder, [1, 2, 3], 3, SamplingParams(temperature=1.0))


def test_a_head_that_lacks_a_part_or_scores_another_vocabulary_is_refused(names):
    oracle = tiny_transformer()
    head = names["OneLayer"](oracle, 1)
    del head.max_context
    with pytest.raises(ValueError, match="of type OneLayer and lacks max_context:"):
        drafts.Eagle3(head)
    with pytest.raises(
        ValueError, match="draft 'eagle3' was given TwoAhead, which is made for the source 'block_drafter'"
    ):
        drafts.Eagle3(names["TwoAhead"](oracle, 1))
    narrow = names["OneLayer"](oracle, 1)
    score = narrow.score
    narrow.score = lambda *given: Scores(logits if (logits := score(*given).logits) is None else logits[..., 1:])
    sizes = f"vocab_size={oracle.vocab_size} and scores {oracle.vocab_size - 1} ids: return a logit for each id"
    with pytest.raises(ValueError, match=sizes):
        SpeculativeDecoder(oracle, drafts.Eagle3(narrow)).generate([[1, 2, 3]], 4)
    with pytest.raises(ValueError, match=r"reads the outputs of layers \(-1,\), and the oracle .* layers 0\.\.1"):
        SpeculativeDecoder(oracle, drafts.Eagle3(names["OneLayer"](oracle, -1))).generate([[1, 2, 3]], 4)


def test_a_block_head_that_lacks_parts_or_tells_laws_of_another_vocabulary_is_refused(names):
    oracle = tiny_transformer()
    head = names["TwoAhead"](oracle, 1)
    with pytest.raises(
        ValueError, match="draft 'block_drafter' was given OneLayer, which is made for the source 'eagle3'"
    ):
        drafts.BlockDrafter(names["OneLayer"](oracle, 1))
    lame = names["TwoAhead"](oracle, 1)
    del lame.layers, lame.oracle
    with pytest.raises(ValueError, match="of type TwoAhead and lacks oracle, layers: give a block head"):
        drafts.BlockDrafter(lame)
    with pytest.raises(ValueError, match=r"no features were put for rows \[1\]"):
        head.new_cache(2, 8).last(np.array([1]))
    opened = head.open_block

    for depth in (0, 1):

        def narrow(*given, depth=depth):
            block = opened(*given)
            block.laws = [law[..., 1:] if i == depth else law for i, law in enumerate(block.laws)]
            return block

        head.open_block = narrow
        with pytest.raises(ValueError, match=f"TwoAhead, has vocab_size={oracle.vocab_size} and scores"):
            SpeculativeDecoder(oracle, drafts.BlockDrafter(head)).generate([[1, 2, 3]], 4)
