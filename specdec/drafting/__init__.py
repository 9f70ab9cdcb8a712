"""What draft sources share: drawing chains and trees, a drafting model's cache, sources made of others."""

from specdec.drafting.assembly import compact
from specdec.drafting.automaton import Automaton
from specdec.drafting.block_source import BlockSource
from specdec.drafting.chain_sampler import ChainSampler, drawable_laws
from specdec.drafting.combination import Combination, check_servable, member_stream, proposal
from specdec.drafting.growth import ScoredLevel, growth
from specdec.drafting.head_model import HeadModel, HiddenStates
from specdec.drafting.judging_model import JudgingModel
from specdec.drafting.lent_cache import LentCache
from specdec.drafting.model import DraftModel
from specdec.drafting.model_source import (
    ChainSession,
    HeadSource,
    ModelSource,
    RunModel,
    SampledSource,
    TreeSession,
    check_drafter,
    check_parts,
)
from specdec.drafting.ngram_checks import check_contents, check_header
from specdec.drafting.ngram_model import NGramModel, Sequences
from specdec.drafting.sessions import MemorylessSession, list_chains, point_chains
from specdec.drafting.spelling import SharedPieces, Spelling, piece_bytes
from specdec.drafting.tree_sampler import Frontier, TreeSampler
from specdec.drafting.trunk import Trunk

__all__ = [
    "Automaton",
    "BlockSource",
    "ChainSampler",
    "ChainSession",
    "Combination",
    "DraftModel",
    "Frontier",
    "HeadModel",
    "HeadSource",
    "HiddenStates",
    "JudgingModel",
    "LentCache",
    "MemorylessSession",
    "ModelSource",
    "NGramModel",
    "RunModel",
    "SampledSource",
    "ScoredLevel",
    "Sequences",
    "SharedPieces",
    "Spelling",
    "TreeSampler",
    "TreeSession",
    "Trunk",
    "check_contents",
    "check_drafter",
    "check_header",
    "check_parts",
    "check_servable",
    "compact",
    "drawable_laws",
    "growth",
    "list_chains",
    "member_stream",
    "piece_bytes",
    "point_chains",
    "proposal",
]
