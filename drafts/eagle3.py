"""Draft with a head that reads the oracle's hidden states and steps token by token: a chain, or a tree of any shape."""

from specdec.contracts import Oracle, SteppingHead
from specdec.drafting import HeadModel, HeadSource, check_drafter, check_parts
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.shapes import TreeShape

_PARTS = ("layers", "put", "new_cache", "score", "vocab_size", "oracle", "max_context", "device", "dtype", "chains")


class Eagle3(HeadSource):
    """Draft tokens sampled from a small head that goes on from what the oracle's layers made of the text so far.

    After a step the head reads every token that stands, together with the oracle's hidden states of the position before
    it; from the pending token on it uses features of its own.

    Args:
        head: a stepping head, such as ``oracles.load_head`` returns for EAGLE-3; bound to the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        length: a length policy.
        tree: the shape of the drafts, in place of a length. EAGLE-2's dynamic trees are ``ReRanked`` (deterministic
            candidates only) and ``Grown``.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping applies
            either way.

    Raises:
        ValueError: a head of another kind, or one that lacks a part; an argument out of range, a tree beside a length,
            a tree that is re-ranked and not greedy (``temperature=0``: to re-rank drawn nodes would move the output's
            law); in ``open``, another vocabulary than the oracle's, or an oracle without the head's layers.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens are point masses. Lossless
        under every lossless rule. Keys that were made of the head's own features are taken back after every step. A row
        of a single id has no hidden states yet, and drafts nothing in its first step. Reproducible. Inside ``Merged``
        and ``Cascade`` it reads the hidden states of what other members drafted too.
    Cost: one pass of the head over the tokens that came to stand since the last one, then one for each further token
        (trees: level), and a cache of one layer with a feature for each slot. If the head offers it, all passes of a
        chain, or of a tree whose shape is known beforehand, are one call (see ``ChainSampler``, ``TreeSampler``). The
        oracle hands over the outputs of the head's layers at all scored nodes and for the prompt: B * N * D numbers a
        layer, and one gather.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840); trees: Li et al. 2024 (EAGLE-2, arXiv 2406.16858).
    Deviations: EAGLE's own trees re-rank at every temperature, and another rule verifies them; here drawn nodes stay.
    """

    name = "eagle3"
    head: SteppingHead

    def __init__(
        self,
        head: SteppingHead,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_drafter(head, self.name)
        check_parts(head, _PARTS, "give a stepping head, such as oracles.load_head returns for this source")
        super().__init__(num_draft_tokens, length, temperature, tree, default=5)
        self.head = head

    def open_model(self, oracle: Oracle, num_rows: int, capacity: int) -> HeadModel:
        """Return the head at work; arguments as in ``DraftSource.open``."""
        slack = self.length.max_depth if self.tree is None else self.tree.max_scored
        return HeadModel(self.head, num_rows, capacity, oracle.device, slack)
