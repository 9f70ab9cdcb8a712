"""A budget across rows whose size follows from the measured cost of a pass: fewer nodes a row, the larger the batch."""

from dataclasses import dataclass
from typing import ClassVar

from specdec.contracts import BoolArray, Draft
from specdec.engine.shared_budget import check_belief, take_best
from specdec.theory import Calibration


@dataclass(frozen=True)
class CostBudget:
    """Verify as many nodes a step as pay at its batch, the likeliest of all rows to stand first.

    With B rows in flight a step verifies at most B k nodes, k being ``Calibration.best_length(B, num_draft_tokens)``.
    What is decided comes in this order: the rows of the step; the number B k; one after the other the positions that
    are taken, as ``SharedBudget`` takes them. No number depends on a draft of the step.

    Args:
        calibration: what drafted tokens are worth and cost, from ``specdec.calibrate`` at some batch size.
        num_draft_tokens: how many the source drafts at most; of a tree its nodes.
        belief: see ``SharedBudget``.

    Raises:
        ValueError: no calibration, or a number out of its range.

    Guarantee: as of ``SharedBudget``.
    Cost: as of ``SharedBudget``, and O(num_draft_tokens) a step. Drafting costs what it costs without a budget.
    Source: the step costs of vLLM's adaptive verification (its documentation, 2026), which sizes the budget of a step
        by them.
    Deviations: there earlier confidences of the requests take part in the number; here it is the same for all batches
        of one size.
    """

    calibration: Calibration
    num_draft_tokens: int
    belief: float = 0.8
    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = self.num_draft_tokens
        if not isinstance(self.calibration, Calibration):
            raise ValueError(
                f"calibration={self.calibration!r} is no Calibration: give what specdec.calibrate returns, or "
                "Calibration.independent(...)"
            )
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"num_draft_tokens must be 0 or a larger integer, not {number!r}")
        check_belief(self.belief)

    def take(self, draft: Draft) -> BoolArray:
        """Return ``[B, N]`` the nodes that are verified."""
        num_rows = len(draft.num_nodes)
        most = num_rows * self.calibration.best_length(num_rows, self.num_draft_tokens)
        return take_best(draft, most, self.belief)
