"""Heads, ours and published ones: small models that read a transformer's hidden states."""

from oracles.heads.aux_layers import AuxLayers
from oracles.heads.block_head import DFlashHead
from oracles.heads.block_network import BlockNetwork, BlockShape
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_head import Eagle3Head
from oracles.heads.eagle3_network import Eagle3Network
from oracles.heads.exit_head import ExitHead, HeadShape, load_exit_head, save_head
from oracles.heads.graphed_block import GraphedBlockHead
from oracles.heads.graphed_eagle3 import GraphedEagle3Head
from oracles.heads.head_loading import load_head
from oracles.heads.medusa_head import MedusaHead, MedusaNetwork, MedusaShape
from oracles.heads.native_block import NativeBlockHead
from oracles.heads.native_eagle3 import NativeEagle3Head

__all__ = [
    "AuxLayers",
    "BlockNetwork",
    "BlockShape",
    "DFlashHead",
    "Eagle3Head",
    "Eagle3Network",
    "Eagle3Shape",
    "ExitHead",
    "GraphedBlockHead",
    "GraphedEagle3Head",
    "HeadShape",
    "MedusaHead",
    "MedusaNetwork",
    "MedusaShape",
    "NativeBlockHead",
    "NativeEagle3Head",
    "load_exit_head",
    "load_head",
    "save_head",
]
