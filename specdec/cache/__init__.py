"""The cache: slots, per-row lengths, rollback; prompts on their way into it; and whether scores on it are right."""

from specdec.cache.compared_passes import Reading, ScoresDiffer, deviation, distance
from specdec.cache.feature_cache import FeatureCache, FeatureSlots
from specdec.cache.page_pool import PAGE, PagePool, count_pages
from specdec.cache.paged_cache import PagedCache, PagedKVCache, PageMemory, TensorMemory
from specdec.cache.prefill import CHUNK, prefill
from specdec.cache.prefix_memory import FreshRows, ModelPrefixes, PrefixMemory
from specdec.cache.slot_cache import KVCache, SlotCache, check_fits, move_kept
from specdec.cache.whole_sequences import LEAST_CONTEXT, TOLERANCES, check_scores, node_by_node

__all__ = [
    "CHUNK",
    "LEAST_CONTEXT",
    "PAGE",
    "TOLERANCES",
    "FeatureCache",
    "FeatureSlots",
    "FreshRows",
    "KVCache",
    "ModelPrefixes",
    "PageMemory",
    "PagePool",
    "PagedCache",
    "PagedKVCache",
    "PrefixMemory",
    "Reading",
    "ScoresDiffer",
    "SlotCache",
    "TensorMemory",
    "check_fits",
    "check_scores",
    "count_pages",
    "deviation",
    "distance",
    "move_kept",
    "node_by_node",
    "prefill",
]
