"""The types that pass between the parts, and the protocols that the parts fulfil.

Shapes: B rows of a batch, N draft nodes, V vocabulary. A draft's parent -1 is the *pending* token: it is committed, but
its keys are not yet in the cache. In a scoring call the pending token is node 0 and draft node i is node i + 1:
``Draft.tree`` makes that shift, and whatever follows counts its nodes.
Host-side bookkeeping (rows, lengths) is numpy int64; what follows from the model stays on the model's device.
"""

from specdec.contracts.arrays import BoolArray, Float32Array, FloatArray, IntArray, constant, pad_rows
from specdec.contracts.chaining import (
    ChainDraws,
    ChainingOracle,
    ChainWatch,
    TreeDraws,
    TreePlan,
    can_draft_natively,
    follow_ids,
)
from specdec.contracts.draft import NEVER, Budget, Draft, Resume, form_fault
from specdec.contracts.drawing import Adjustments, ChainKeys, DraftKernels, OpenVerdict, Randomness, Warping, numbers_of
from specdec.contracts.head import Block, BlockHead, ChainingBlockHead, Features, Head, HostOracle, SteppingHead
from specdec.contracts.oracle import (
    BITWISE_NODES,
    Cache,
    ChatEncoder,
    Likeliest,
    Oracle,
    OracleDefaults,
    Scores,
    Want,
    declared,
    describe_oracle,
    ids_device,
)
from specdec.contracts.oracle_kinds import (
    LayeredOracle,
    LayerHead,
    Prefixes,
    PrefixOracle,
    PromptRows,
    RecordedOracle,
    as_recorded,
    check_has_laws,
)
from specdec.contracts.rule import NativeJudge, Rule, Verdict, VerificationRule, rule_label
from specdec.contracts.source import (
    Context,
    DraftSession,
    DraftSource,
    Needs,
    Offers,
    check_source,
    check_tensors,
    close_session,
    share_prefixes,
)
from specdec.contracts.step import KIND, MEANING, Ending, StageInfo, StepInfo, sum_of_stages
from specdec.contracts.tree import Tree, ancestors_of, is_chain, with_root
from specdec.contracts.vocabulary import FOREIGN, check_vocabulary
from specdec.contracts.watching import WatchedSession, WatchedSource, frozen

__all__ = [
    "BITWISE_NODES",
    "FOREIGN",
    "KIND",
    "MEANING",
    "NEVER",
    "Adjustments",
    "Block",
    "BlockHead",
    "BoolArray",
    "Budget",
    "Cache",
    "ChainDraws",
    "ChainKeys",
    "ChainWatch",
    "ChainingBlockHead",
    "ChainingOracle",
    "ChatEncoder",
    "Context",
    "Draft",
    "DraftKernels",
    "DraftSession",
    "DraftSource",
    "Ending",
    "Features",
    "Float32Array",
    "FloatArray",
    "Head",
    "HostOracle",
    "IntArray",
    "LayerHead",
    "LayeredOracle",
    "Likeliest",
    "NativeJudge",
    "Needs",
    "Offers",
    "OpenVerdict",
    "Oracle",
    "OracleDefaults",
    "PrefixOracle",
    "Prefixes",
    "PromptRows",
    "Randomness",
    "RecordedOracle",
    "Resume",
    "Rule",
    "Scores",
    "StageInfo",
    "StepInfo",
    "SteppingHead",
    "Tree",
    "TreeDraws",
    "TreePlan",
    "Verdict",
    "VerificationRule",
    "Want",
    "Warping",
    "WatchedSession",
    "WatchedSource",
    "ancestors_of",
    "as_recorded",
    "can_draft_natively",
    "check_has_laws",
    "check_source",
    "check_tensors",
    "check_vocabulary",
    "close_session",
    "constant",
    "declared",
    "describe_oracle",
    "follow_ids",
    "form_fault",
    "frozen",
    "ids_device",
    "is_chain",
    "numbers_of",
    "pad_rows",
    "rule_label",
    "share_prefixes",
    "sum_of_stages",
    "with_root",
]
