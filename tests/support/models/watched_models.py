"""Draft models whose passes are noted, and laws of their drafts from one pass over everything."""

from typing import Any

import numpy as np
import pytest
import torch

from oracles import TabularLM, Transformer, TransformerConfig
from specdec import Draft
from specdec.contracts import Scores
from specdec.sampling import BatchWarping, ParameterTable, SamplingParams

PROMPTS = {0: [1], 1: [2, 3, 2, 3], 2: [0, 5, 0, 5, 0, 4, 0], 3: [4, 4]}
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4)


class Watched:
    """A model that notes the rows and the numbers of nodes of every pass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.passes: list[dict[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def score(self, tokens: Any, parents: Any, num_nodes: Any, cache: Any, rows: Any, *rest: Any) -> Scores:
        self.passes.append(dict(zip(rows.tolist(), num_nodes.tolist(), strict=True)))
        scores: Scores = self.model.score(tokens, parents, num_nodes, cache, rows, *rest)
        return scores


def transformer(max_context: int = 64, seed: int = 0) -> Transformer:
    """Return a small float64 model whose laws differ widely between contexts."""
    config = TransformerConfig(6, 16, 2, 2, 24, max_context, num_kv_heads=1)
    model = Transformer(config, seed).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12) if parameter.dim() > 1 else None
    return model


MODELS = {"table": lambda: TabularLM.random(6, 2, 3), "transformer": transformer}
all_models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def rescored(model: Any, ids: list[int], drafted: list[int], temperature: float | None) -> torch.Tensor:
    """Return the laws ``[N, V]`` of a chain from one pass over everything, by the rows' own warping."""
    path = torch.tensor([ids + drafted])
    cache = model.new_cache(1, path.shape[1])
    logits = model.score(path, None, torch.tensor([path.shape[1]]), cache, np.array([0]), "all").logits
    at = np.array([len(ids)])
    warping = BatchWarping(ParameterTable.of([SAMPLED]), np.array([ids]), at, at, ())
    draft = Draft(path[:, len(ids) :], torch.tensor([len(drafted)]))
    laws = warping.laws(logits[:, len(ids) - 1 : -1], draft, torch.arange(len(drafted)), temperature)
    return laws.dense(6)[0]
