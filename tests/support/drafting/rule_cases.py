"""Shapes of drafts and pairs of laws on which every rule is enumerated."""

import dataclasses

import numpy as np
import torch

from specdec.contracts import Draft, Verdict
from specdec.laws import Laws
from specdec.verify import Standard
from tests.reference.tables import Floats, random_table, sequence_law, warped_table
from tests.support.drafting.block_law import PROMPT, Shape, block_law, total_variation

TOLERANCE = 1e-12
CHAINS = {
    "empty": Shape(()),
    "one": Shape((-1,)),
    "three": Shape((-1, 0, 1)),
    "deterministic": Shape((-1, 0, 1), fixed=(2, 0, 1)),
    "mixed": Shape((-1, 0, 1), fixed=(None, 1, None)),
}
TREES = {
    "siblings": Shape((-1, -1, -1)),
    "siblings without replacement": Shape((-1, -1), without_replacement=True),
    "deep": Shape((-1, -1, 0, 0, 1)),
    "deterministic": Shape((-1, -1, 0, 0, 3), fixed=(0, 2, 1, 2, 2)),
    "equal deterministic siblings": Shape((-1, -1, 0, 1, 1), fixed=(1, 1, 0, 2, 2)),
    "scouts": Shape((-1, -1, 0, 1, 0), scouts=(1, 3)),
}
TABLES = {
    "different": (random_table(3, 2, 1), random_table(3, 2, 2)),
    "equal": (random_table(3, 2, 1), random_table(3, 2, 1)),
    "zeros in the target": (random_table(3, 2, 3, zeros=0.4), random_table(3, 2, 4)),
    "zeros in the draft": (random_table(3, 2, 5), random_table(3, 2, 6, zeros=0.4)),
    "hot draft": (random_table(3, 2, 7), warped_table(random_table(3, 2, 7), temperature=3.0)),
    "top-k target": (warped_table(random_table(3, 2, 8), 0.7, top_k=2), random_table(3, 2, 9)),
    "greedy target": (warped_table(random_table(3, 2, 10), 0.0), random_table(3, 2, 11)),
    "greedy draft": (random_table(3, 2, 12), warped_table(random_table(3, 2, 13), 0.0)),
    "both greedy": (warped_table(random_table(3, 2, 14), 0.0), warped_table(random_table(3, 2, 15), 0.0)),
}


def random_shape(seed):
    """Return a tree of up to five nodes with at most three children each, honest in either way of drawing."""
    generator = np.random.default_rng(seed)
    size, replacement = int(generator.integers(2, 6)), bool(generator.integers(2))
    parents, fixed, scouts = [], [], []
    for node in range(size):
        parent = int(generator.choice([n for n in range(-1, node) if parents.count(n) < 3]))
        # A fixed id behind drawn siblings would be one that was not removed from its law.
        is_fixed = generator.random() < 0.3 and (replacement or parent not in parents)
        if parent in scouts or generator.random() < 0.15:
            scouts.append(node)
        parents.append(parent)
        fixed.append(int(generator.integers(3)) if is_fixed else None)
    return Shape(tuple(parents), tuple(fixed), tuple(scouts), without_replacement=not replacement)


RANDOM_TREES = {str(seed): random_shape(seed) for seed in range(40)}


def tables_for(shape: Shape) -> dict[str, tuple[Floats, Floats]]:
    """Return all tables, but for siblings without replacement: two of these cannot be drawn from a law of one id."""
    fits = {name: (np.count_nonzero(draft, axis=-1) > 1).all() for name, (_, draft) in TABLES.items()}
    return {name: pair for name, pair in TABLES.items() if fits[name] or not shape.without_replacement}


def deviation(rule, shape, tables):
    """Return the total variation between a rule's block and the target's law."""
    target, draft = tables
    made = block_law(rule, shape, draft, target)
    return total_variation(made, sequence_law(target, PROMPT, shape.depth() + 1))


@dataclasses.dataclass(frozen=True)
class Lenient:
    """A lossy toy: accepts with a tenth more than it may."""

    name: str = "lenient"
    lossless: bool = False
    trees: bool = False
    coupled: bool = False
    native_judge: None = None

    def __call__(self, draft: Draft, target_laws: Laws | torch.Tensor) -> Verdict:
        verdict = Standard()(draft, target_laws)
        stops = verdict.stop_probs
        last = torch.nn.functional.one_hot(draft.num_nodes, stops.shape[1])
        mixed = 0.9 * stops + 0.1 * last
        return Verdict(Laws.from_probs(mixed), verdict.width, verdict.next_law)
