"""The cache: slots, per-row lengths, rollback; and prompts on their way into it."""

from specdec.cache.feature_cache import FeatureCache, FeatureSlots
from specdec.cache.page_pool import PAGE, PagePool, count_pages
from specdec.cache.paged_cache import PagedCache, PagedKVCache, PageMemory, TensorMemory
from specdec.cache.prefill import CHUNK, prefill
from specdec.cache.slot_cache import KVCache, SlotCache, check_fits, free_memory, move_kept

__all__ = [
    "CHUNK",
    "PAGE",
    "FeatureCache",
    "FeatureSlots",
    "KVCache",
    "PageMemory",
    "PagePool",
    "PagedCache",
    "PagedKVCache",
    "SlotCache",
    "TensorMemory",
    "check_fits",
    "count_pages",
    "free_memory",
    "move_kept",
    "prefill",
]
