"""Draft sources: ways of guessing what an oracle will say next."""

from drafts.block_drafter import BlockDrafter
from drafts.cascade import Cascade
from drafts.eagle3 import Eagle3
from drafts.early_exit import EarlyExit
from drafts.forced import Forced
from drafts.lookahead import Lookahead
from drafts.medusa import Medusa
from drafts.merged import Merged
from drafts.ngram import NGram
from drafts.other_vocabulary import OtherVocabulary
from drafts.prompt_lookup import PromptLookup
from drafts.quantized import Quantized
from drafts.small_transformer import SmallTransformer
from drafts.staged import Staged
from drafts.stateless import stateless
from drafts.suffix_automaton import SuffixAutomaton

__all__ = [
    "BlockDrafter",
    "Cascade",
    "Eagle3",
    "EarlyExit",
    "Forced",
    "Lookahead",
    "Medusa",
    "Merged",
    "NGram",
    "OtherVocabulary",
    "PromptLookup",
    "Quantized",
    "SmallTransformer",
    "Staged",
    "SuffixAutomaton",
    "stateless",
]
