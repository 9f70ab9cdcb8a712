"""Tables of what is counted, not measured: bytes of caches, attention with a cache and without."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specdec.theory.limits import (
    ModelShape,
    attention_work_cached,
    attention_work_naive,
    context_of_equal_bytes,
    kv_cache_bytes,
)

Row = Mapping[str, Any]
# Prompt and new tokens of the embedded arithmetic checkpoint, the short end; then new tokens after each context.
SHORT, NEW = (9, 19), 64

CACHE_NOTE = (
    "Bytes of keys and values that a row must keep, by the heads that have them (MHA: each its own; GQA: some share; "
    "MQA: all share) and with a sliding window. Equal at: the context from which on a pass of one row reads more of "
    "them than of weights."
)
ATTENTION_NOTE = (
    "Millions of FLOPs of attention (scores and weighted sum, a multiply-add is two), linear layers left out. Naive: "
    "each pass computes all queries again and meets all keys. Cached: one query a pass, the prompt's others not "
    "counted; they are in the last columns."
)


def attention_kinds(shape: ModelShape, window: int) -> dict[str, ModelShape]:
    """Return name -> the model with these key and value heads; the model's own kind and its window among them."""
    plain = replace(shape, window=None)
    shared = [heads for heads in range(2, shape.num_heads) if shape.num_heads % heads == 0]
    counts = {"MHA": shape.num_heads, "MQA": 1}
    if shared:
        counts["GQA"] = shape.num_kv_heads if shape.num_kv_heads in shared else shared[0]
    kinds = {
        f"{name}, {_heads(counts[name])}": replace(plain, num_kv_heads=counts[name])
        for name in ("MHA", "GQA", "MQA")
        if name in counts
    }
    window = window if shape.window is None else shape.window
    return {**kinds, f"{_heads(shape.num_kv_heads)}, window {window}": replace(shape, window=window)}


def _heads(count: int) -> str:
    return f"{count} KV head{'' if count == 1 else 's'}"


def cache_rows(shape: ModelShape, contexts: Sequence[int], window: int) -> list[Row]:
    """Return a row per kind of attention and bytes of a cached number."""
    found: list[Row] = []
    for name, kind in attention_kinds(shape, window).items():
        for size in (4, 2):
            stored = replace(kind, bytes_per_cached=size)
            sizes = {f"MB at {context}": kv_cache_bytes(stored, context) / 1e6 for context in contexts}
            own = (stored.num_kv_heads, stored.window, size) == (
                shape.num_kv_heads, shape.window, shape.bytes_per_cached
            )  # fmt: skip
            equal = context_of_equal_bytes(stored)
            found.append({
                "kind": name,
                "bytes a number": size,
                "this model": "yes" if own else "",
                "KB a token": stored.cache_bytes_per_token / 1e3,
                **sizes,
                "equal at": None if equal is None else round(equal),
            })  # fmt: skip
    return found


def attention_rows(shape: ModelShape, contexts: Sequence[int]) -> list[Row]:
    """Return a row per prompt length: a layer, the model, and with the prompt's own queries."""
    found: list[Row] = []
    for prompt, generated in (SHORT, *((context, NEW) for context in contexts)):
        sizes = prompt, generated, shape.attention_width
        naive, cached = attention_work_naive(*sizes), attention_work_cached(*sizes)
        whole = attention_work_cached(*sizes, with_prefill=True)
        found.append({
            "prompt": prompt,
            "new": generated,
            "naive, a layer": f"{naive / 1e6:,.2f}",
            "cached, a layer": f"{cached / 1e6:,.2f}",
            "ratio": f"{naive / cached:,.2f}",
            f"naive, {shape.num_layers} layers": f"{naive * shape.num_layers / 1e6:,.2f}",
            f"cached, {shape.num_layers} layers": f"{cached * shape.num_layers / 1e6:,.2f}",
            "cached and prefill, a layer": f"{whole / 1e6:,.2f}",
            "its ratio": f"{naive / whole:,.2f}",
        })  # fmt: skip
    return found
