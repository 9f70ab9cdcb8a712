"""Rotary positions in a ``config.json``: their base, the part of a head that turns, and how they are scaled."""

from typing import Any

from oracles.checkpoints.config_keys import ELSEWHERE, REQUIRED, ConfigKeys, errors_of, read_any
from oracles.transformer.config import RopeScaling
from oracles.transformer.rotary import yarn_magnitude


def read_rope(keys: ConfigKeys, thetas: tuple[str, ...], parts: tuple[str, ...], default_part: float) -> dict[str, Any]:
    """Return theta, the scaling, the rotated part of a head and the context, from either spelling, or from both.

    The context is the config's. Yarn stretches a shorter original context that the config names. With linear scaling, a
    longer ``max_sequence_length`` counts up to the stretched context, as in Vicuna's models of 16 k.

    Args:
        keys: the whole config.
        thetas, parts: names of the base and of the rotated part in older configs.
        default_part: the rotated part if nothing says otherwise.

    Raises:
        ValueError: the two spellings contradict each other, or a key is missing, of a wrong type or unsupported.
    """
    tables = {name: keys.read(name, dict, {}) for name in ("rope_parameters", "rope_scaling")}
    new, old = tables.values()
    if new | old != old | new:
        raise ValueError(f"{keys.source}: rope_parameters and rope_scaling contradict each other; keep one")
    nested = ConfigKeys(new | old, ": ".join([keys.source, *(name for name, table in tables.items() if table)][:2]))
    kind = read_any([(nested, "rope_type"), (nested, "type")], str, "default")
    context = keys.read("max_position_embeddings", int)
    scaling = _rope_scaling(nested, kind, context)
    if scaling is not None and kind == "yarn":
        context = stretch_context(context, scaling, nested.read("original_max_position_embeddings", int, 0))
    if scaling is not None and kind == "linear":
        context = max(
            context, min(keys.read("max_sequence_length", int, 0), stretch_context(context, scaling, context))
        )
    fields = {
        "max_context": context,
        "rope_theta": float(read_any([(nested, "rope_theta"), *((keys, name) for name in thetas)], float, 10000.0)),
        "rope_scaling": scaling,
        "part": read_any([(nested, "partial_rotary_factor"), *((keys, name) for name in parts)], float, default_part),
    }
    # DeepSeek-R1-0528-Qwen3-8B has an attn_factor; ``transformers`` does not read it either.
    nested.close({"finetuned", "attn_factor"})
    return fields


def stretch_context(context: int, scaling: RopeScaling, original: int) -> int:
    """Return the context to which a scaling stretches an original one (0: none is named), at least ``context``."""
    return max(context, int(min(scaling.factor * original, 2.0**31 - 1)))


def _rope_scaling(nested: ConfigKeys, kind: str, context: int) -> RopeScaling | None:
    """Return the scaling of a kind; it stretches ``context``, the config's, unless it names another one."""
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ValueError(
            f"{nested.source}: rope_type is {kind!r}; known: default, linear, llama3, yarn; a whole model with another "
            f"one may run {ELSEWHERE}"
        )
    original = nested.read("original_max_position_embeddings", int, context)
    if kind == "default":
        return None
    ratio = context / original if kind == "yarn" and original else REQUIRED
    fields: dict[str, Any] = {"kind": kind, "factor": nested.read("factor", float, ratio)}
    if kind == "yarn":
        fields |= _yarn(nested, fields["factor"]) | {"original_context": original}
    if kind == "llama3":
        bounds = {name: nested.read(name, float) for name in ("low_freq_factor", "high_freq_factor")}
        fields |= bounds | {"original_context": original}
    with errors_of(nested.source):
        return RopeScaling(**fields)


def _yarn(nested: ConfigKeys, factor: float) -> dict[str, Any]:
    """Return the fields that only yarn has."""
    scales = [nested.read(name, float, 0.0) for name in ("mscale", "mscale_all_dim")]
    by_scales = None
    if all(scales) and factor > 1:
        above, below = (yarn_magnitude(factor, scale) for scale in scales)
        by_scales = above / below
    return {
        "attention_factor": nested.read("attention_factor", float, by_scales),
        "beta_fast": nested.read("beta_fast", float, 0.0) or 32.0,
        "beta_slow": nested.read("beta_slow", float, 0.0) or 1.0,
        "truncate": nested.read("truncate", bool, "truncate" not in nested.values),
    }
