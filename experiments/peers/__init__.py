"""Other programs on the same prompts and weights, for the sake of comparison."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.harness.arms import Arm
from experiments.peers.refusing import PeerRefusal, RefusedArm, words_of
from experiments.peers.with_llama_cpp import LlamaCppArm, llama_cpp_arm
from experiments.peers.with_transformers import DRAFTING, TransformersArm, transformers_arm
from specdec import Oracle

__all__ = ["PEERS", "LlamaCppArm", "RefusedArm", "TransformersArm", "strategies_read", "words_of"]

_Maker = Callable[[str, Mapping[str, Any], Oracle, str], LlamaCppArm | TransformersArm]
_MAKERS: dict[str, _Maker] = {
    **dict.fromkeys(("transformers", "transformers:bfloat16", *DRAFTING), transformers_arm),
    **dict.fromkeys(("llama.cpp", "llama.cpp:bfloat16"), llama_cpp_arm),
    "llama.cpp:lookup": partial(llama_cpp_arm, drafts=True),
}
# What its name says of the dtype of a peer's weights and products; of all others it is the oracle's.
_BFLOAT16 = ":bfloat16"
# Peer that drafts -> the strategy whose options say how.
_DRAFTS_AS = {
    "transformers:assisted": "small_transformer",
    "transformers:assisted-heuristic": "small_transformer",
    "transformers:lookup": "prompt_lookup",
    "llama.cpp:lookup": "prompt_lookup",
}


def strategies_read(peers: Iterable[str]) -> set[str]:
    """Return the strategies whose options some peers read."""
    return {_DRAFTS_AS[name] for name in peers if name in _DRAFTS_AS}


def _refusal(name: str, arguments: Mapping[str, Any], storage: str) -> str | None:
    """Return why a peer with weights of this dtype does not do what is asked; None: it may."""
    if arguments["temperature"] > 0:
        return "it draws otherwise than we do, so that outputs cannot be compared: use --temperature 0"
    if arguments.get("ignore_eos"):
        return "it ends where its text ends: leave out --ignore-eos"
    if (weights := arguments["weights"]) not in (None, storage):
        beside = f", or take {name.partition(':')[0]}{_BFLOAT16}" if weights == "bfloat16" else ""
        return f"its weights are {storage}, not --weights {weights}: leave that out{beside}"
    return None


def _peer(name: str, arguments: Mapping[str, Any], oracle: Oracle) -> Arm | RefusedArm:
    """Return a peer's arm; if the peer is missing or cannot do what is asked, an arm that says why."""
    storage = "bfloat16" if name.endswith(_BFLOAT16) else str(oracle.dtype).removeprefix("torch.")
    if words := _refusal(name, arguments, storage):
        return RefusedArm(name, words)
    try:
        arm = _MAKERS[name](name, arguments, oracle, storage)
    except (ImportError, PeerRefusal) as error:
        return RefusedArm(name, words_of(error))
    batch_size = arguments["batch_size"]
    refused = arm.refusal(batch_size) if batch_size > 1 else None
    return arm if refused is None else RefusedArm(name, refused)


PEERS: dict[str, Callable[[Mapping[str, Any], Oracle], Arm | RefusedArm]] = {
    name: partial(_peer, name) for name in _MAKERS
}
