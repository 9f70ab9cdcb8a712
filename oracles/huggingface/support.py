"""What a ``transformers`` model says about itself, and what it must have to serve as an oracle."""

import inspect
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import nn

from oracles.checkpoints.chat_files import default_template, ends_within, named_tokens
from oracles.checkpoints.loading import num_ids
from oracles.checkpoints.placement import check_context
from specdec.prompts.chat import ChatTemplate

ATTENTIONS = ("eager", "sdpa")
# Types whose frequencies depend on the longest position of a pass, beyond the model's original context.
GROWING_ROPES = ("dynamic", "longrope")


def text_config(model: Any) -> Any:
    """Return the configuration of the text model, which may be a part of a larger one."""
    return model.config.get_text_config(decoder=True)


def has_argument(model: Any, name: str) -> bool:
    """Tell whether the model's ``forward`` names this argument."""
    return name in inspect.signature(model.forward).parameters


def check_model(model: Any) -> None:
    """Refuse a model that lacks what an oracle needs.

    Args:
        model: a causal language model of ``transformers``.

    Raises:
        ValueError: it is an encoder-decoder, keeps a recurrent state, cannot take positions or a cache, has an
            attention that ignores 4-D masks, is in training mode, or lies on several devices or none. The message says
            which.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ValueError(f"model is a {type(model).__name__}; give a causal language model object of transformers")
    for reason in (_kind_lacks(model), _state_lacks(model)):
        if reason is not None:
            raise ValueError(f"{type(model).__name__} cannot be an oracle: {reason}")


def _kind_lacks(model: Any) -> str | None:
    """Return what a model of this kind can never have; None: nothing."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; a causal language model scores one sequence"
    if getattr(model, "_is_stateful", False):
        return "it keeps a recurrent state, which cannot be rolled back to the tokens that stand"
    for name in ("input_ids", "position_ids", "past_key_values", "attention_mask"):
        if not has_argument(model, name):
            return f"its forward takes no {name}, without which trees cannot be scored on a cache"
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        return "it has no output embeddings, so it gives no logits: load it with AutoModelForCausalLM"
    return None


def _state_lacks(model: Any) -> str | None:
    """Return what this object lacks as it stands; None: nothing."""
    attention = getattr(text_config(model), "_attn_implementation", None)
    if attention not in ATTENTIONS:
        return f"its attention is {attention!r}, which 4-D masks do not reach: load it with attn_implementation='sdpa'"
    if any(part.training for part in model.modules()):
        return "it is in training mode, where dropout may draw: call model.eval() first"
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if any(device.type == "meta" for device in devices):
        return "some of its tensors are on the meta device, without values: load its weights first"
    if len(devices) != 1:
        return f"its tensors lie on {', '.join(sorted(map(str, devices)))}; move them to one device"
    return None


def experts_of(config: Any) -> int:
    """Return how many experts a layer of the text model chooses from, by any of the names that configurations use."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return max(int(np.max(getattr(config, name, None) or 1)) for name in names)  # some have a number for each layer


def longest_context(config: Any, asked: int | None) -> int:
    """Return the positions that a model can serve.

    Args:
        config: of the text model.
        asked: caps what the model declares; None: no cap.

    Raises:
        ValueError: neither says how many, or ``asked`` is below 1.
    """
    check_context(asked)
    declared = [getattr(config, "max_position_embeddings", None), asked, *_before_growing(config)]
    limits = [int(limit) for limit in declared if limit is not None]
    if not limits:
        raise ValueError("the model's config has no max_position_embeddings: give max_context")
    return min(limits)


def _before_growing(config: Any) -> list[int | None]:
    """Return the contexts up to which rotary embeddings do not depend on the longest row of a batch."""
    parameters = getattr(config, "rope_parameters", None) or {}
    ropes = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    names = ("original_max_position_embeddings", "max_position_embeddings")
    own = next((size for name in names if (size := getattr(config, name, None))), None)
    return [rope.get(names[0]) or own for rope in ropes if rope.get("rope_type") in GROWING_ROPES]


def ending_ids(model: Any, vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a text, from the generation config, else the config; warns as ``ends_within`` does."""
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    found = getattr(text_config(model), "eos_token_id", None) if found is None else found
    ids = [] if found is None else found if isinstance(found, list | tuple) else [found]
    return ends_within([*map(int, ids)], vocab_size, "the model's config")


def true_vocabulary(config: Any, tokenizer: Any | None) -> int:
    """Return the number of ids: the tokenizer's, or without one the model's.

    Control tokens may lie beyond the model's ids, as Gemma 3's image token does for its text model: they do not count.

    Raises:
        ValueError: the tokenizer has a piece of text that the model lacks.
    """
    if tokenizer is None:
        return int(config.vocab_size)
    control = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    size = 1 + max((i for i in tokenizer.get_vocab().values() if i not in control), default=-1)
    if not 0 < size <= config.vocab_size:
        raise ValueError(f"tokenizer has ids up to {size - 1}, the model a vocabulary of {config.vocab_size}")
    return min(num_ids(tokenizer), int(config.vocab_size))


def template_of(tokenizer: Any, plain: Any) -> ChatTemplate | None:
    """Return the chat template of a fast tokenizer of ``transformers``, whose ``plain_tokenizer`` is ``plain``.

    None: it has none.
    """
    source = default_template(getattr(tokenizer, "chat_template", None))
    if source is None:
        return None
    tokens = named_tokens(source, tokenizer.special_tokens_map)
    return ChatTemplate(source, plain, tokenizer.bos_token, tokenizer.eos_token, name="tokenizer", arguments=tokens)


def plain_tokenizer(tokenizer: Any | None) -> Any | None:
    """Return a ``tokenizers.Tokenizer`` from one, or from a fast tokenizer of ``transformers``; None stays None.

    It neither truncates nor pads, which would change prompts. Calls of a fast tokenizer leave such settings behind, so
    the result is a copy of it; likewise for a ``tokenizers.Tokenizer`` that has such settings.

    Raises:
        ValueError: it is neither, or has parts that cannot be copied.
    """
    plain = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if plain is not None and not hasattr(plain, "get_vocab_size"):
        raise ValueError(f"tokenizer is a {type(tokenizer).__name__}; give a tokenizers.Tokenizer, or a fast one")
    changes = any(getattr(plain, name, None) is not None for name in ("truncation", "padding"))
    if plain is None or (plain is tokenizer and not changes):
        return plain
    try:
        own = Tokenizer.from_str(plain.to_str())
    except Exception as error:  # the library has no narrower one
        raise ValueError(f"tokenizer cannot be copied: {error}; give one without parts of your own, or None") from error
    own.no_truncation()
    own.no_padding()
    return own
