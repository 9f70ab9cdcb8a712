"""The cache: slots, per-row lengths, rollback; and prompts on their way into it."""

from specdec.cache.feature_cache import FeatureCache, FeatureSlots
from specdec.cache.page_pool import PAGE, PagePool, count_pages
from specdec.cache.paged_cache import PagedCache, PagedKVCache, PageMemory, TensorMemory
from specdec.cache.prefill import CHUNK, prefill
from specdec.cache.prefix_memory import FreshRows, ModelPrefixes, PrefixMemory
from specdec.cache.slot_cache import KVCache, SlotCache, check_fits, move_kept

__all__ = [
    "CHUNK",
    "PAGE",
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
    "SlotCache",
    "TensorMemory",
    "check_fits",
    "count_pages",
    "move_kept",
    "prefill",
]
