"""Draft with Medusa's heads: each predicts a token further ahead from the oracle's last hidden state."""

from specdec.drafting import BlockSource


class Medusa(BlockSource):
    """Draft from heads that give the laws of the next tokens at once, none of which depends on another.

    Args:
        head: what ``oracles.load_head`` returned, for the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default: one for each head.
        length: a length policy, of no more tokens than there are heads.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping (top_p,
            penalties along the drafted path, ...) applies either way.
        tree: the shape of the drafts, in place of a length: ``specdec.Chain``, ``Kary``, ``Paths``, ``Grown`` or
            ``ReRanked``. All nodes of a level have children from one law; siblings are drawn without replacement.

    Raises:
        ValueError: a head of another kind, an argument out of range, more tokens than heads, a tree beside a length, a
            tree that is re-ranked and not greedy (``temperature=0``); in ``open``, another vocabulary.

    Guarantee: the declared law of a node is the one its token was drawn from. Lossless under every lossless rule. A row
        of one id has no hidden state before it and drafts nothing.
    Cost: a step reads each drafting head once, its residual blocks and a read-out of O(D V); the states of accepted
        tokens are copied.
    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774).
    Deviations: the paper verifies by typical acceptance, which is lossy; here any rule does. Its trees take each head's
        best ids at every temperature; so do ours if drafts are greedy (``temperature=0``).
    """

    name = "medusa"
