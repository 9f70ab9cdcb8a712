"""Draft with a smaller language model on its own cache: a chain token by token, or a tree level by level."""

from specdec.contracts import Needs, Oracle, check_model, check_vocabulary
from specdec.drafting import DraftModel, ModelSource
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.shapes import TreeShape


class SmallTransformer(ModelSource):
    """Draft tokens sampled from a model that is cheaper than the oracle: a chain, or a tree of any shape.

    Args:
        model: any object with the oracle contract (a transformer, a table, a quantised view, ...). Its true vocabulary
            must be the oracle's.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        length: a length policy.
        tree: the shape of the drafts, in place of a length: ``specdec.Chain``, ``Kary``, ``Paths``, ``Grown`` or
            ``ReRanked``. Siblings are drawn without replacement; greedy ones are the model's best ids.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping (top_p,
            penalties along the drafted path, ...) applies either way.

    Raises:
        ValueError: no model, an argument out of range, a tree beside a length, a tree that is re-ranked and not greedy
            (``temperature=0``); in ``open``, another vocabulary than the oracle's, with the reason.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens are point masses. Lossless
        under every lossless rule. A row near the end of the model's own context drafts less, and at its end nothing.
        Rows with a spent budget take part in no pass.
    Cost: one pass of one or two tokens a row to catch up, then one pass per further token, and the model's own cache
        for all rows. If the model offers it, all passes are one call, which asks ``length``; or, if tokens are greedy
        and ``length`` reads nothing, one graph on its device (see ``ChainSampler``). Confidences (a gather if drawn, a
        softmax if greedy) and entropies are computed only if ``length`` reads them. A tree takes one pass a level, over
        the level's nodes that have children. If its shape is known beforehand, that is one call too (see
        ``TreeSampler``, which also says when it waits for the device). The model reads accepted nodes again in its next
        catch-up, which stays one pass.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318). Trees: Miao et
        al. 2024 (SpecInfer, arXiv 2305.09781); Chen et al. 2024 (Sequoia, arXiv 2402.12374).
    """

    name = "small_transformer"
    needs = Needs()

    def __init__(
        self,
        model: Oracle,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_model(model, "model")
        super().__init__(num_draft_tokens, length, temperature, tree, default=5)
        self.model = model

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from."""
        return self.model.vocab_size

    def open_model(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftModel:
        """Return the model at work; arguments as in ``DraftSource.open``."""
        check_vocabulary(f"draft {self.name!r}", self.model.vocab_size, self.model.tokenizer, oracle)
        slack = 0 if self.tree is None else self.tree.max_scored
        return DraftModel(self.model, num_rows, capacity, oracle.device, slack)
