"""The gate: an arm that writes other ids than the first one has failed, however fast it is."""

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.inference_stack.arms import Generate
from experiments.inference_stack.results import Found
from experiments.inference_stack.subjects import Subject
from experiments.inference_stack.timing import generation


def written(generate: Generate, subject: Subject, batch: int, title: str) -> Tensor:
    """Return ``[G, num_new]`` what an arm writes after the prompts of the gate; the last batch is filled up with others."""
    found = []
    for first in tqdm(range(0, len(subject.gate), batch), desc=title, leave=False):
        at = torch.arange(first, first + batch) % len(subject.gate)
        found.append(generation(generate, subject.gate[at], subject.device)[0])
    return torch.cat(found)[: len(subject.gate)]


def judged(ids: Tensor, wanted: Tensor, answers: Tensor | None) -> Found:
    """Return how many rows of ids ``[G, N]`` are those that are wanted, and how many answers are right.

    Returns:
        "prompts", "same", and "exact" (None if nobody knows the answers).
    """
    exact = None if answers is None else int((ids == answers).all(1).sum())
    return {"prompts": len(ids), "same": int((ids == wanted).all(1).sum()), "exact": exact}
