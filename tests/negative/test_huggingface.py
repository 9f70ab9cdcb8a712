"""Models of ``transformers`` that cannot be scored as trees on a cache are refused, with the reason."""

from functools import wraps
from types import SimpleNamespace

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from oracles import HuggingFaceLM
from oracles.huggingface import masks
from oracles.huggingface.support import longest_context, plain_tokenizer
from specdec.cache import KVCache
from tests.support.models.hf_models import random_model


def altered(family, change, **options):
    """Return a model whose forward gets its arguments from ``change(arguments)`` whenever a 4-D mask is given."""
    model = random_model(family, **options)
    forward = model.forward

    @wraps(forward)
    def other(**arguments):
        return forward(**(change(arguments) if arguments.get("attention_mask") is not None else arguments))

    model.forward = other
    return model


def without_mask(arguments):
    return arguments | {"attention_mask": None}


def by_slot_only(arguments):
    """Let every node see all slots before its own, as a causal mask does."""
    mask = arguments["attention_mask"]
    nodes, slots = mask.shape[2:]
    seen = torch.ones(nodes, slots, dtype=torch.bool).tril(slots - nodes)
    return arguments | {"attention_mask": torch.where(seen, 0.0, mask)}


def without_windows(arguments):
    given = arguments["attention_mask"]
    return arguments | {"attention_mask": given | {"sliding_attention": given["full_attention"]}}


def positions_by_slot(arguments):
    positions = arguments["position_ids"]
    return arguments | {"position_ids": positions[:, :1] + torch.arange(positions.shape[1])}


def one_position_late(arguments):
    return arguments | {"position_ids": arguments["position_ids"] * 2}


BROKEN = {
    "mask dropped": ("llama", without_mask, "its forward failed|chain in chunks"),
    "mask by slot": ("llama", by_slot_only, "tree of .* nodes.*4-D masks are not obeyed"),
    "windows dropped": ("gemma2", without_windows, "whole sequences"),
    "windows of gemma3 dropped": ("gemma3", without_windows, "whole sequences"),
    "positions by slot": ("llama", positions_by_slot, "tree of .* nodes"),
    "positions ignored": ("gpt2", one_position_late, "chain in chunks .*positions"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_model_that_goes_its_own_way_is_refused(case):
    family, change, reason = BROKEN[case]
    with pytest.raises(ValueError, match=f"ForCausalLM cannot be an oracle|LMHeadModel cannot.*{reason}") as caught:
        HuggingFaceLM(altered(family, change))
    caught.match(reason)


def test_a_window_wider_than_the_longest_tree_is_checked():
    HuggingFaceLM(random_model("gemma2", sliding_window=270, max_position_embeddings=512))
    with pytest.raises(ValueError, match="whole sequences"):
        HuggingFaceLM(altered("gemma2", without_windows, sliding_window=270, max_position_embeddings=512))


def test_the_check_notices_our_own_mistakes(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(masks.Reach, "narrow", lambda self, seen, query, key: seen)
        with pytest.raises(ValueError, match="whole sequences"):
            HuggingFaceLM(random_model("mistral"))
    with monkeypatch.context() as patch:
        narrow = masks.Reach.narrow
        patch.setattr(masks.Reach, "narrow", lambda self, seen, query, key: narrow(self, seen, query + 1, key))
        with pytest.raises(ValueError, match="whole sequences"):
            HuggingFaceLM(random_model("phi3"))
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "_gather", lambda *_: None)
        with pytest.raises(ValueError, match="chain after rollback"):
            HuggingFaceLM(random_model("olmo"))


TINY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 23, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS = {
    "T5": (
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=23, d_model=16, d_ff=16, num_layers=1, num_heads=2)
        ),
        "encoder-decoder",
    ),
    "Mamba": (
        lambda: transformers.MambaForCausalLM(
            transformers.MambaConfig(vocab_size=23, hidden_size=16, num_hidden_layers=1, pad_token_id=0)
        ),
        "recurrent state",
    ),
    "GPT-Neo": (
        lambda: transformers.GPTNeoForCausalLM(
            transformers.GPTNeoConfig(
                vocab_size=23, hidden_size=16, num_layers=2, num_heads=2, window_size=5, max_position_embeddings=64,
                attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2,
            )
        ),
        "4-D masks are not obeyed",
    ),
    "MPT": (
        lambda: transformers.MptForCausalLM(
            transformers.MptConfig(vocab_size=23, d_model=16, n_layers=1, n_heads=2, max_seq_len=64)
        ),
        "no position_ids",
    ),
    "without a head": (lambda: transformers.LlamaModel(transformers.LlamaConfig(**TINY)), "output embeddings"),
    "linear layers": (
        lambda: random_model("qwen2", layer_types=["full_attention", "linear_attention", "full_attention"]),
        "'linear_attention'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_of_model_lacks_is_named(kind):
    make, reason = KINDS[kind]
    with pytest.raises(ValueError, match=reason):
        HuggingFaceLM(make().eval())


def test_what_an_object_lacks_is_named():
    with pytest.raises(ValueError, match=r"training mode.*model.eval"):
        HuggingFaceLM(random_model("llama").train())
    model = random_model("llama")
    next(model.eval().children()).train()
    with pytest.raises(ValueError, match="training mode"):
        HuggingFaceLM(model)
    with pytest.raises(ValueError, match="meta device"):
        HuggingFaceLM(random_model("llama").to("meta"))
    with pytest.raises(ValueError, match="'flex_attention'"):
        HuggingFaceLM(random_model("llama", attn_implementation="flex_attention"))
    with pytest.raises(ValueError, match="give a causal language model object"):
        HuggingFaceLM("a name")
    with pytest.raises(ValueError, match="max_context must be an integer, 1 or more, not 0"):
        HuggingFaceLM(random_model("llama"), max_context=0)
    with pytest.raises(ValueError, match="at least 12 positions"):
        HuggingFaceLM(random_model("llama"), max_context=5)


def test_vocabulary_and_ends():
    words = {f"w{i}": i for i in range(21)}
    oracle = HuggingFaceLM(
        random_model("llama", eos_token_id=[2, 22]), Tokenizer(WordLevel(words, unk_token="w0")), max_context=40
    )
    assert (oracle.vocab_size, oracle.eos_ids, oracle.max_context) == (21, (2,), 40)
    # As Gemma 3's text models have it: a control token beyond what the model scores.
    more = Tokenizer(WordLevel(words | {f"w{i}": i for i in range(21, random_model("llama").config.vocab_size)}))
    more.add_special_tokens(["<image>"])
    assert HuggingFaceLM(random_model("llama"), more).vocab_size == more.get_vocab_size() - 1
    with pytest.raises(ValueError, match="ids up to 30"):
        HuggingFaceLM(random_model("llama"), Tokenizer(WordLevel(words | {"more": 30}, unk_token="w0")))
    with pytest.raises(ValueError, match=r"give a tokenizers\.Tokenizer"):
        HuggingFaceLM(random_model("llama"), "tokenizer.json")
    cutting = Tokenizer(WordLevel(words, unk_token="w0"))
    cutting.pre_tokenizer = WhitespaceSplit()
    cutting.enable_truncation(2)
    cutting.enable_padding(length=5)
    oracle = HuggingFaceLM(random_model("llama"), cutting)
    assert oracle.tokenizer.encode("w1 w2 w3").ids == [1, 2, 3]
    assert len(cutting.encode("w1 w2 w3").ids) == 5, "the caller's own stays as it is"
    cutting.no_padding()
    assert plain_tokenizer(cutting).encode("w1 w2 w3").ids == [1, 2, 3]
    cutting.no_truncation()
    cutting.enable_padding(length=5)
    assert plain_tokenizer(cutting).encode("w1 w2 w3").ids == [1, 2, 3]


def test_rotary_embeddings_that_grow_end_the_context():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = random_model("phi3", original_max_position_embeddings=32, rope_parameters=rope)
    assert HuggingFaceLM(model).max_context == 32


@pytest.mark.parametrize("rope", ["default", "dynamic"])
def test_a_model_that_names_no_context_takes_the_one_that_is_given(rope):
    config = SimpleNamespace(rope_parameters={"rope_type": rope})
    with pytest.raises(ValueError, match="has no max_position_embeddings: give max_context"):
        longest_context(config, None)
    assert longest_context(config, 24) == 24
