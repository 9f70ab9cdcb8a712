"""The cache: slots, per-row lengths, rollback; and prompts on their way into it."""

from specdec.cache.feature_cache import FeatureCache
from specdec.cache.prefill import CHUNK, prefill
from specdec.cache.slot_cache import KVCache, SlotCache, check_fits, free_memory, move_kept

__all__ = ["CHUNK", "FeatureCache", "KVCache", "SlotCache", "check_fits", "free_memory", "move_kept", "prefill"]
