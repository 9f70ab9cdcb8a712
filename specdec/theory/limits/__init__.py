"""What a pass has to do at least: operations, bytes, and the time that a machine needs for them.

A FLOP is one addition or one multiplication: a multiply-add counts two. Only matrix products are counted. Bytes are
those of weights, keys and values, which lie in memory before or after a pass.
"""

from specdec.theory.limits.passes import (
    ModelShape,
    PassCost,
    attention_work_cached,
    attention_work_naive,
    context_of_equal_bytes,
    kv_cache_bytes,
    pass_cost,
    prefill_costs,
    visible_positions,
)
from specdec.theory.limits.roofline import BestLength, Roofline, best_draft_length, break_even_width

__all__ = [
    "BestLength",
    "ModelShape",
    "PassCost",
    "Roofline",
    "attention_work_cached",
    "attention_work_naive",
    "best_draft_length",
    "break_even_width",
    "context_of_equal_bytes",
    "kv_cache_bytes",
    "pass_cost",
    "prefill_costs",
    "visible_positions",
]
