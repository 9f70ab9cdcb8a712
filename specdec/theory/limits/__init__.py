"""What a pass has to do at least: operations, bytes, and the time that a machine needs for them.

A FLOP is one addition or one multiplication: a multiply-add counts two. Only matrix products are counted. Bytes are
those of weights, keys and values, which lie in memory before or after a pass.
"""

from specdec.theory.limits.attention_cost import attention_work_cached, attention_work_naive, visible_positions
from specdec.theory.limits.gains import BestLength, best_draft_length
from specdec.theory.limits.model_shape import ModelShape, context_of_equal_bytes, kv_cache_bytes
from specdec.theory.limits.passes import PassCost, pass_cost, prefill_costs
from specdec.theory.limits.roofline import Roofline, break_even_width

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
