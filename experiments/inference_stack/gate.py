"""The gate: an arm that writes other ids than the first one has failed, however fast it is."""

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.inference_stack.stack_arms import Generate
from experiments.inference_stack.stack_results import Found
from experiments.inference_stack.stack_timing import generation
from experiments.inference_stack.subjects import Subject


def write_ids(generate: Generate, subject: Subject, batch: int, num_prompts: int, title: str) -> Tensor:
    """Return ``[num_prompts, num_new]`` ids that an arm writes after the first prompts of the gate.

    The batches are whole: the first prompts fill the last one up.

    Raises:
        ValueError: the arm returns ids of another shape.
    """
    found = []
    for first in tqdm(range(0, num_prompts, batch), desc=title, leave=False):
        at = torch.arange(first, first + batch) % num_prompts
        ids = generation(generate, subject.gate[at], subject.device)[0]
        if ids.shape != (batch, subject.num_new):
            raise ValueError(f"the arm returned ids of shape {tuple(ids.shape)}, not {(batch, subject.num_new)}")
        found.append(ids)
    return torch.cat(found)[:num_prompts]


def judge(ids: Tensor, wanted: Tensor, answers: Tensor | None) -> Found:
    """Return how many rows of ids ``[G, N]`` are the first that are wanted, and how many answers are right.

    Returns:
        "prompts", "same", and "exact" (None if nobody knows the answers).
    """
    count = len(ids)
    exact = None if answers is None else int((ids == answers[:count]).all(1).sum())
    return {"prompts": count, "same": int((ids == wanted[:count]).all(1).sum()), "exact": exact}
