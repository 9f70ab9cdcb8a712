"""What compiled code finds wrong with drafts: ``FaultCode`` and ``Fault`` of ``walks.h`` in Python."""

from enum import IntEnum


class FaultCode(IntEnum):
    """What is wrong. Among several faults the first kind here is reported, then the first row, then the first node.

    TOKEN: the vocabulary lacks a node's id; padding too.
    COUNT: there cannot be that many nodes.
    PARENT: a node hangs on itself, on a later one or on none; padding too.
    SCOUT: a verified node hangs on a scout.
    SOURCE: a node is by a source that does not exist.
    TABLE: the law of a node is not in the table; padding too.
    LOGITS: the target's logits at a node make no law.
    MODEL: a drafting model gave logits that make no law; its column takes the place of the node.
    LAW: a node cannot have been drawn from its law, or that is not a law.
    BUDGET: there are too many nodes, or too deep ones; the depth takes the place of the node.
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
