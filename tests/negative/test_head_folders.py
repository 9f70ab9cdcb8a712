"""Block drafters and Medusa's heads that cannot be: every refusal names the file, and the tensor or key."""

import pytest
import torch

import drafts
from oracles import HuggingFaceLM, load_head
from specdec import Paths, SpeculativeDecoder
from specdec.drafting.lengths import Fixed, Threshold
from tests.support.models.eagle3_heads import tiny_eagle3
from tests.support.models.head_folders import LAYOUTS, MEDUSAS, block_folder, medusa_folder
from tests.support.models.hf_models import random_model
from tests.support.models.tiny_models import tiny_transformer


def changes(folder, path, value):
    """Put a value into a config, at a path of keys; None takes the key away."""
    *above, last = path.split("/")
    place = folder.config
    for key in above:
        place = place[key]
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value


def assert_refused(folder, name, value, message):
    """Put a tensor into a head, None takes it away, and see that it is refused with its folder named."""
    folder.weights.pop(name, None)
    if value is not None:
        folder.weights[name] = value
    with pytest.raises(ValueError, match=message) as caught:
        load_head(folder.save(), tiny_transformer())
    assert str(folder.path) in str(caught.value)


CONFIGS = [
    ("dflash", "hidden_size", 8, "hidden_size 8 .* oracle's are 16 and 4"),
    ("dflash", "vocab_size", 9, "vocab_size 9; the oracle's are 16 and 4"),
    ("dflash", "dflash_config/target_layer_ids", [0, 2], r"outputs of layers \(0, 2\) .*outputs of layers 0..1"),
    ("dspark", "target_layer_ids", [-1, 0], r"outputs of layers \(-1, 0\)"),
    ("dflash", "dflash_config/target_layer_ids", "1,2", "list of whole numbers"),
    ("dflash", "dflash_config/target_layer_ids", None, "lacks 'target_layer_ids'"),
    ("dflash", "dflash_config/mask_token_id", 4, "'mask_token_id' 4 is none of 4 ids"),
    ("dflash", "dflash_config/conv_kernel_size", 3, "'conv_kernel_size' .* is unknown"),
    ("dflash", "dflash_config/block_size", 1, "'block_size' is 1"),
    ("dflash", "dflash_config/block_size", 10**9, "'block_size' is 1000000000"),
    ("dflash", "num_hidden_layers", 10**6, "1000000 layers"),
    ("dflash", "num_hidden_layers", 3, "it names full_attention or sliding_attention for each layer"),
    ("dflash", "intermediate_size", 25, r"mlp\..* has shape .*, the config implies"),
    ("dflash", "num_target_layers", 3, "'num_target_layers' is 3; the oracle has 2 layers: load it with"),
    ("dflash", "rope_scaling", {"rope_type": "dynamic"}, "'dynamic'; known: .*; a whole model with another one may"),
    ("dflash", "architectures", ["DFlash2DraftModel"], r"no known kind of head .*\['DFlash2DraftModel'\]"),
    ("dflash", "swish_limit", 1.0, "'swish_limit' .* is unknown"),
    ("dspark", "markov_head_type", "cubic", "'markov_head_type' is 'cubic'; known: vanilla, gated, rnn"),
    ("dspark", "markov_rank", 4, r"markov_w1.weight' has shape \(4, 3\), the config implies \(4, 4\)"),
    ("dspark gated", "markov_rank", 0, "'markov_rank' is 0; a confidence head"),
    ("speculators dflash", "aux_hidden_state_layer_ids", [0], r"inputs of layers \(0,\)"),
    ("speculators dflash", "draft_vocab_size", 3, "tensor 'd2t' is missing"),
    ("speculators dflash", "projector_type", "domino", "'projector_type' is 'domino'; only 'dflash'"),
    ("speculators dspark", "target_hidden_size", 32, "target_hidden_size differs"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "key", "value", "message"), CONFIGS, ids=lambda one: str(one)[:40])
def test_configs_of_block_drafters_that_cannot_be_are_refused(layout, key, value, message, tmp_path):
    folder = block_folder(tmp_path, **LAYOUTS[layout])
    changes(folder, key, value)
    with pytest.raises(ValueError, match=message) as caught:
        load_head(folder.save(), tiny_transformer())
    assert str(tmp_path) in str(caught.value)


def test_what_the_layers_of_a_block_see_is_read_or_refused(tmp_path):
    """Windows without a size, or that are not in use; a layer too few; causality that is said twice, in two ways."""
    for i, (changed, message) in enumerate(
        [
            ({"sliding_window": None}, "with sliding_window None and use_sliding_window True"),
            ({"sliding_window": 0}, "with sliding_window 0 and"),
            ({"use_sliding_window": False}, "with sliding_window 3 and use_sliding_window False"),
            ({"layer_types": ["sliding_attention"]}, "names full_attention or sliding_attention for"),
            ({"layer_types": ["sliding_attention", "chunked"]}, "names full_attention or sliding"),
        ]
    ):
        folder = block_folder(tmp_path / str(i), **LAYOUTS["dflash with a window"])
        folder.config |= changed
        with pytest.raises(ValueError, match=message):
            load_head(folder.save(), tiny_transformer())
    told = [
        ({}, {}, [(3, False), (None, True)]),
        ({"is_causal": False}, {}, [(3, True), (None, True)]),
        ({}, {"causal": True}, [(3, False), (None, False)]),
        ({"is_causal": True}, {"causal": False}, None),
    ]
    for i, (above, within, reaches) in enumerate(told):
        folder = block_folder(tmp_path / f"told {i}", **LAYOUTS["dflash with a window"])
        folder.config |= above | {"dflash_config": folder.config["dflash_config"] | within}
        if reaches is None:
            with pytest.raises(ValueError, match="contradictory values"):
                load_head(folder.save(), tiny_transformer())
        else:
            head = load_head(folder.save(), tiny_transformer())
            assert [(reach.window, reach.ahead) for reach in head.network.reaches] == reaches


WRONG = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("layout", "name", "value", "message"),
    [
        ("dflash", "fc.weight", None, "'fc.weight' is missing"),
        ("dflash", "layers.1.self_attn.k_norm.weight", WRONG, r"has shape \(3, 3\), the config implies \(6,\)"),
        ("dflash", "layers.0.self_attn.rotary.weight", WRONG, "is unexpected"),
        ("dspark", "logit_head.fc.weight", WRONG, "'logit_head.fc.weight' is unexpected"),
        ("dflash", "norm.weight", torch.zeros(16, dtype=torch.int64), "is I64"),
        ("speculators dspark", "d2t", None, "'d2t' is missing"),
        ("speculators dspark", "d2t", torch.tensor([1, 2, 3]), "column r writes id"),
        ("speculators dspark", "d2t", torch.tensor([0, 0, 1]), "'t2d' names other ids than 'd2t'"),
        ("speculators dspark", "t2d", torch.ones(4, dtype=torch.bool), "'t2d' names other ids than 'd2t'"),
        ("speculators dspark", "lm_head.weight", WRONG, r"has shape \(3, 3\), the config implies \(3, 16\)"),
    ],
)
def test_tensors_of_block_drafters_that_do_not_fit_are_refused(layout, name, value, message, tmp_path):
    folder = block_folder(tmp_path, **LAYOUTS[layout])
    assert_refused(folder, name, value, message)


def test_a_mask_among_the_padding_is_embedded_where_the_oracle_keeps_those_rows(tmp_path):
    oracle = tiny_transformer(padded_vocab_size=7)
    folder = block_folder(tmp_path, 7, **LAYOUTS["dflash"], mask_id=5)
    head = load_head(folder.path, oracle)
    assert head.vocab_size == 4
    result = SpeculativeDecoder(oracle, drafts.BlockDrafter(head)).generate([[1, 2, 3]], 8)
    assert result.stats.num_drafted > 0


def test_layers_are_counted_as_the_layout_has_it_or_as_is_asked_for(tmp_path):
    oracle = tiny_transformer(num_layers=3)
    own = block_folder(tmp_path / "own", **LAYOUTS["dflash"], target_layers=3)
    theirs = block_folder(tmp_path / "theirs", **LAYOUTS["speculators dflash"])
    assert load_head(own.path, oracle).layers == (0, 1)
    assert theirs.config["aux_hidden_state_layer_ids"] == [1, 2]
    assert load_head(theirs.path, oracle).layers == (0, 1)
    assert "outputs of layers 0, 1 (format: inputs of 1, 2)" in repr(load_head(theirs.path, oracle))
    assert load_head(theirs.path, oracle, aux_layers="outputs").layers == (1, 2)


MEDUSA_CONFIGS = [
    ("vllm", "hidden_size", 8, "hidden_size 8 and vocab_size 4; the oracle's are 16 and 4"),
    ("original", "version", "2", "'version' is '2'; only '1' is supported"),
    ("vllm", "logit_scale", 2.0, "'logit_scale' is 2.0; only 1.0"),
    ("vllm", "num_heads", 4, "'blocks.3.layers.0.weight' is missing"),
    ("vllm", "num_heads", 10**6, "1000000 heads"),
    ("vllm", "truncated_vocab_size", 3, "'token_map' is missing"),
    ("vllm with fewer ids", "truncated_vocab_size", 2, "must hold 2 different ids of 0..3"),
    ("vllm with fewer ids", "truncated_vocab_size", 0, "'truncated_vocab_size' is 0; a head writes at least one id"),
    ("original", "medusa_num_layers", 2, r"'0.1.linear.weight' is missing"),
    ("original", "medusa_num_heads", 0, "0 heads"),
    ("original", "medusa_choices", "x", "'medusa_choices' .* is unknown"),
]


@pytest.mark.parametrize(("layout", "key", "value", "message"), MEDUSA_CONFIGS, ids=lambda one: str(one)[:40])
def test_configs_of_medusa_that_cannot_be_are_refused(layout, key, value, message, tmp_path):
    folder = medusa_folder(tmp_path, **MEDUSAS[layout])
    folder.config[key] = value
    with pytest.raises(ValueError, match=message) as caught:
        load_head(folder.save(), tiny_transformer())
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "name", "value", "message"),
    [
        ("original", "1.0.linear.bias", None, "'1.0.linear.bias' is missing"),
        ("original", "3.0.linear.bias", torch.zeros(16), "'3.0.linear.bias' is unexpected"),
        (
            "original",
            "0.1.weight",
            torch.zeros(7, 16),
            "'0.1.weight' describes .* vocab_size 7; the oracle's are",
        ),
        ("original", "2.1.weight", WRONG, r"has shape \(3, 3\), the config implies \(4, 16\)"),
        ("vllm with fewer ids", "token_map", torch.tensor([0, 0, 1]), "must hold 3 different ids"),
        ("vllm with fewer ids", "token_map", torch.tensor([0, 1, 4]), "must hold 3 different ids"),
    ],
)
def test_tensors_of_medusa_that_do_not_fit_are_refused(layout, name, value, message, tmp_path):
    folder = medusa_folder(tmp_path, **MEDUSAS[layout])
    assert_refused(folder, name, value, message)


def test_medusa_numbers_no_layers(tmp_path):
    folder = medusa_folder(tmp_path, layout="original")
    for given, named in (
        ({"aux_layers": "inputs", "backend": "eager"}, "aux_layers"),
        ({"weights": "int8", "backend": "native"}, "backend and weights"),
    ):
        with pytest.raises(
            ValueError, match=rf"config\.json: this kind of head has no such choice: leave out {named}$"
        ):
            load_head(folder.path, tiny_transformer(), **given)
    with pytest.raises(ValueError, match="as its oracle was loaded: weights='int8-dynamic' needs float32 arithmetic"):
        load_head(folder.path, tiny_transformer(), weights="int8-dynamic")


def test_sources_refuse_what_a_block_cannot_give(tmp_path):
    oracle = tiny_transformer()
    block = load_head(block_folder(tmp_path / "b", **LAYOUTS["dflash"]).path, oracle)
    heads = load_head(medusa_folder(tmp_path / "m", layout="original").path, oracle)
    with pytest.raises(ValueError, match="drafts of 4 tokens are asked for, and a block of this head has laws for 3"):
        drafts.BlockDrafter(block, num_draft_tokens=4)
    with pytest.raises(ValueError, match="has laws for 3"):
        drafts.BlockDrafter(block, length=Threshold(threshold=0.5, max_draft_tokens=4))
    with pytest.raises(ValueError, match="has laws for 3"):
        drafts.Medusa(heads, tree=Paths([(0, 0, 0, 0)]))
    with pytest.raises(ValueError, match="made for the source 'medusa'"):
        drafts.BlockDrafter(heads)
    with pytest.raises(ValueError, match="made for the source 'block_drafter'"):
        drafts.Medusa(block)
    with pytest.raises(
        ValueError, match="given Transformer, which has no drafter: that of a head for this source is 'medusa'"
    ):
        drafts.Medusa(oracle)
    with pytest.raises(ValueError, match="not both"):
        drafts.Medusa(heads, num_draft_tokens=2, length=Fixed(2))
    with pytest.raises(ValueError, match="temperature"):
        drafts.BlockDrafter(block, temperature=-1.0)
    assert drafts.BlockDrafter(block).offers.max_depth == 3
    with pytest.raises(ValueError, match="vocabulary of 4 ids"):
        SpeculativeDecoder(tiny_transformer(5), drafts.Medusa(heads)).generate([[1, 2]], 2)


def test_a_block_drafts_for_a_model_of_transformers_and_medusa_says_what_it_lacks(tmp_path):
    oracle = HuggingFaceLM(random_model("llama"))
    width, rows = oracle.hidden_size, oracle.embedding_rows
    own = {**LAYOUTS["dspark gated"], "hidden_size": width, "target_layers": oracle.hidden_layers}
    head = load_head(block_folder(tmp_path / "b", rows, **own).path, oracle)
    prompts = [[1, 2, 3, 1, 2], [4]]
    made = SpeculativeDecoder(oracle, drafts.BlockDrafter(head)).generate(prompts, 8)
    assert made.tokens == SpeculativeDecoder(oracle).generate(prompts, 8).tokens
    assert made.stats.num_drafted > 0
    with pytest.raises(ValueError, match=r"read an oracle's last norm, and .* lends none"):
        load_head(medusa_folder(tmp_path / "m", rows, layout="original", width=width).path, oracle)


@pytest.mark.parametrize("options", [{"hidden_size": 32}, {"num_layers": 3}], ids=["wider", "deeper"])
def test_a_head_is_not_used_with_another_oracle_than_its_own(options, tmp_path):
    oracle, other = tiny_transformer(), tiny_transformer(**options)
    block = load_head(block_folder(tmp_path / "block", **LAYOUTS["dflash"]).path, oracle)
    medusa = load_head(medusa_folder(tmp_path / "medusa", **MEDUSAS["original"]).path, oracle)
    for source in (drafts.BlockDrafter(block), drafts.Medusa(medusa), drafts.Eagle3(tiny_eagle3(oracle))):
        with pytest.raises(ValueError, match=f"{source.name}.*2 layers, 16 wide, and the decoder's has .*same oracle"):
            SpeculativeDecoder(other, source).generate([[1, 2]], 3)
