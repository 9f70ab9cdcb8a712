"""The warping of rows written by hand."""

import numpy as np

from specdec.sampling import BatchWarping, ParameterTable


def warping_of(params, prompts, outputs, eos_ids=(), grammars=None):
    """Return the warping of rows with these prompts and outputs; beyond what is committed stand misleading ids."""
    committed = [p + o for p, o in zip(prompts, outputs, strict=True)]
    width = max(map(len, committed)) + 2
    ids = np.array([c + [1] * (width - len(c)) for c in committed])
    lengths = np.array([len(c) for c in committed])
    return BatchWarping(ParameterTable.of(params, grammars), ids, lengths, np.array([len(p) for p in prompts]), eos_ids)
