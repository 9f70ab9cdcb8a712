"""What a run did node by node, kept on the disk, and what other choices would have made of it, without a model."""

from specdec.traces.dense import DenseRecords
from specdec.traces.dense_recording import record_chains, record_trees
from specdec.traces.parts import NodeRecords
from specdec.traces.recording import record_nodes
from specdec.traces.replaying import Replay, replay

__all__ = ["DenseRecords", "NodeRecords", "Replay", "record_chains", "record_nodes", "record_trees", "replay"]
