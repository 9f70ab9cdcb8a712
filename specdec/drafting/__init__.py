"""What draft sources share: chains and trees drawn, a drafting model's cache, sources made of others."""

from specdec.drafting.automaton import Automaton
from specdec.drafting.block_source import BlockSource
from specdec.drafting.chain_sampler import ChainSampler, check_temperature, defined, first_undefined, point_chains
from specdec.drafting.combination import Combination, check_servable, member_stream, proposal
from specdec.drafting.following import follow_ids
from specdec.drafting.head_model import HeadModel
from specdec.drafting.hidden_states import HiddenStates, check_host
from specdec.drafting.lent_cache import LentCache
from specdec.drafting.model import DraftModel
from specdec.drafting.ngram_checks import check_contents, check_header
from specdec.drafting.ngram_model import NGramModel, Sequences
from specdec.drafting.sessions import MemorylessSession
from specdec.drafting.spelling import SharedPieces, Spelling, control_ids, piece_bytes
from specdec.drafting.tree_sampler import Frontier, TreeSampler, check_tree, tree_offers
from specdec.drafting.trunk import Trunk

__all__ = [
    "Automaton",
    "BlockSource",
    "ChainSampler",
    "Combination",
    "DraftModel",
    "Frontier",
    "HeadModel",
    "HiddenStates",
    "LentCache",
    "MemorylessSession",
    "NGramModel",
    "Sequences",
    "SharedPieces",
    "Spelling",
    "TreeSampler",
    "Trunk",
    "check_contents",
    "check_header",
    "check_host",
    "check_servable",
    "check_temperature",
    "check_tree",
    "control_ids",
    "defined",
    "first_undefined",
    "follow_ids",
    "member_stream",
    "piece_bytes",
    "point_chains",
    "proposal",
    "tree_offers",
]
