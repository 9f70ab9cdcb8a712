"""The cache: slots, per-row lengths, rollback; and prompts on their way into it."""

from specdec.cache.feature_cache import FeatureCache, FeatureSlots
from specdec.cache.prefill import CHUNK, prefill
from specdec.cache.slot_cache import KVCache, SlotCache, check_fits, free_memory, move_kept

__all__ = [
    "CHUNK",
    "FeatureCache",
    "FeatureSlots",
    "KVCache",
    "SlotCache",
    "check_fits",
    "free_memory",
    "move_kept",
    "prefill",
]
