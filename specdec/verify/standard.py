"""Token-by-token acceptance of a chain: speculative sampling."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Reads, Rule, Verdict
from specdec.laws import Laws, as_laws
from specdec.verify.chain_verdicts import refuse_tree, standard


@dataclass(frozen=True)
class Standard(Rule):
    """Accept draft token x with probability min(1, p(x) / q(x)); after a rejection draw from max(p - q, 0) / sum.

    p is the target's law at the node's parent and q the law that x was drawn from; a token chosen deterministically has
    a point mass as q, so it is accepted with probability p(x) and its residual is p without x.

    Guarantee: lossless for honest laws, sampled or deterministic; at temperature 0 ids are compared.
    Cost: O(B N V) elementwise for sampled rows with real draft laws, O(B N) for point masses, and O(B V) for the law of
        the next token. The native judge takes O(B V) for each node up to the stop.
    Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318).
    Deviations: the walk's outcome is returned as one law over stops instead of one coin per token; a node whose
        residual has no mass is accepted with certainty (the ratio is 1 up to rounding there).
    """

    name: ClassVar[str] = "standard"
    lossless: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED
    reads: ClassVar[Reads] = Reads.DRAFTED

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        refuse_tree(self.name, draft)
        return standard(draft, as_laws(target_laws))
