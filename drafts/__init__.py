"""Draft sources: ways of guessing what an oracle will say next."""

from drafts.early_exit import EarlyExit
from drafts.lookahead import Lookahead
from drafts.ngram import NGram
from drafts.prompt_lookup import PromptLookup
from drafts.small_transformer import SmallTransformer
from drafts.stateless import stateless

__all__ = ["EarlyExit", "Lookahead", "NGram", "PromptLookup", "SmallTransformer", "stateless"]
