"""From logits to the laws that tokens are drawn from, as the requests ask."""

from specdec.warping.warping import FILTERS, BatchWarping, ParameterTable, path_mask

__all__ = ["FILTERS", "BatchWarping", "ParameterTable", "path_mask"]
