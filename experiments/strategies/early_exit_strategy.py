"""The oracle's own first layers draft."""

import drafts
from experiments.strategies.strategy import Option, Settings, Strategy, depth
from oracles.checkpoints.loading import LoadedOracle
from oracles.heads import load_exit_head
from specdec import DraftSource, Oracle


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    if not isinstance(oracle, LoadedOracle):
        raise ValueError("early_exit: it needs a transformer of ours, whose pass can be cut: leave it out")
    name, k = settings["head"], settings["num_layers"]
    try:
        head = None if name == "none" else load_exit_head(name, oracle)
    except ValueError as error:
        raise ValueError(
            f"early_exit: give --head none, the oracle's own, as {name} cannot be used: {error}"
        ) from error
    if k is None:
        k = max(1, oracle.num_layers // 3) if head is None else head.num_layers
    return drafts.EarlyExit(oracle, k, head, num_draft_tokens=settings["num_draft_tokens"])


STRATEGY = Strategy(
    "early_exit",
    (
        depth(2),
        Option("num-layers", None, int, "layers to draft with (the head's; without one a third of the oracle's)"),
        Option("head", "code-exit", str, "trained head: embedded name or folder; none: the oracle's own"),
    ),
    build,
    needs_model="drafts with the oracle's own layers",
)
