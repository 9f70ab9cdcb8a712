"""Draft a whole block in one pass of a head that reads the oracle's hidden states: DFlash, DSpark."""

from specdec.drafting import BlockSource


class BlockDrafter(BlockSource):
    """Draft from a head that makes the laws of a block of tokens at once: DFlash, and DSpark along its Markov head.

    Args:
        head: what ``oracles.load_head`` returned, for the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default: the whole block.
        length: a length policy, of no more tokens than the block has. Confidences that it reads are those of the head,
            if that has some (DSpark): the chance that a token stands if all before it do, known before it is drawn.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping (top_p,
            penalties along the drafted path, ...) applies either way.
        tree: the shape of the drafts, in place of a length: ``specdec.Chain``, ``Kary``, ``Paths``, ``Grown`` or
            ``ReRanked``. All nodes of a level share one law (DFlash), or differ by the ids before them (DSpark).

    Raises:
        ValueError: a head of another kind, an argument out of range, more tokens than the block has, a tree beside a
            length, a tree that is re-ranked and not greedy (``temperature=0``); in ``open``, another vocabulary.

    Guarantee: the declared law of a node is the one its token was drawn from. Lossless under every lossless rule. A
        row's block follows from its own ids: budget and length cut how much of it is drawn, and change nothing else. A
        row of one id has no hidden states before it and drafts nothing; nor does one whose tokens the head's context
        cannot hold.
    Cost: one pass of the head's layers over a block a step, however much of it is drafted, and a read of the oracle's
        head for each token; DSpark reads its Markov head once a depth. Keys of accepted tokens are made of the oracle's
        states in one product.
    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036); DeepSpec 2026 (DSpark, arXiv 2607.05147).
    Deviations: the sources cut a block at the end of the output, which changes its laws; here it is always whole.
        DSpark's own rule leaves out the first token whose confidence is below a threshold; here ``Threshold`` reads the
        confidences, and ends a draft after that token.
    """

    name = "block_drafter"
