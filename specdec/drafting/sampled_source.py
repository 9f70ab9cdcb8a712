"""What sources have in common whose drafts are sampled from a model's laws."""

from specdec.contracts import Offers
from specdec.drafting.chain_sampler import check_temperature
from specdec.drafting.lengths import LengthPolicy, chain_offers, resolve
from specdec.drafting.shapes import TreeShape
from specdec.drafting.tree_sampler import check_tree, tree_offers


class SampledSource:
    """A length or a tree, the temperature of the drafts, and what follows from these for the engine.

    Args:
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.
        tree: the shape of the drafts, in place of a length.
        default: tokens to draft if none of them says.

    Attributes:
        length, temperature, tree: the same; a source with a tree has no length.

    Raises:
        ValueError: an argument out of range, two ways of saying a length, a tree beside a length, a tree that is
            re-ranked and not greedy.
    """

    def __init__(
        self,
        num_draft_tokens: int | None,
        length: LengthPolicy | None,
        temperature: float | None,
        tree: TreeShape | None = None,
        *,
        default: int,
    ) -> None:
        check_temperature(temperature)
        self.temperature, self.tree = temperature, tree
        if tree is None:
            self.length = resolve(num_draft_tokens, length, default)
        else:
            check_tree(tree, temperature, num_draft_tokens, length)

    @property
    def offers(self) -> Offers:
        """What it declares."""
        if self.tree is not None:
            return tree_offers(self.tree, laws=self.temperature != 0)
        return chain_offers(self.length, laws=self.temperature != 0)
