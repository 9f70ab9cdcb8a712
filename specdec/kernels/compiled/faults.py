"""What compiled code finds wrong with drafts: ``FaultCode`` and ``Fault`` of ``walks.h`` in Python."""

from enum import IntEnum


class FaultCode(IntEnum):
    """What is wrong. Of several faults the first kind here is told, then the first row, then the first node.

    TOKEN: the vocabulary lacks a node's id; padding too.
    COUNT: there cannot be so many nodes.
    PARENT: a node hangs on itself, on a later one or on none; padding too.
    SCOUT: a verified node hangs on a scout.
    SOURCE: a node is by a source that there is not.
    TABLE: the law of a node is none of the table; padding too.
    LOGITS: the target's logits at a node are no law.
    MODEL: a model that was drafted with gave logits that are no law; its column stands for the node.
    LAW: a node cannot have been drawn from its law, or that is no law.
    BUDGET: there are too many nodes, or too deep ones; the depth stands for the node.
    """

    TOKEN = 1
    COUNT = 2
    PARENT = 3
    SCOUT = 4
    SOURCE = 5
    TABLE = 6
    LOGITS = 7
    MODEL = 8
    LAW = 9
    BUDGET = 10


class Fault(Exception):
    """A batch of drafts that cannot be verified.

    Attributes:
        code: what is wrong.
        row: of the batch.
        node: as it was scored, the root first; or what the code says.
    """

    def __init__(self, code: FaultCode, row: int, node: int) -> None:
        super().__init__(f"{code.name} in row {row}, node {node}")
        self.code, self.row, self.node = code, row, node
