"""Load a checkpoint as one process's share of it."""

import os
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from oracles.checkpoints.loading import checkpoint_model, find_checkpoint
from oracles.checkpoints.placement import (
    check_context,
    check_device,
    checkpoint_dtype,
    checkpoint_place,
    dtype_to_load,
)
from oracles.checkpoints.weights import Take
from oracles.parallel.parallel_transformer import ParallelTransformer, Sums
from oracles.parallel.ranks import Ranks
from oracles.parallel.shares import NUM_BLOCKS, Share
from oracles.transformer.config import TransformerConfig, check_choice
from oracles.transformer.eager import Transformer


def load_parallel(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    max_context: int | None = None,
    *,
    sums: Sums = "blocks",
    num_blocks: int = NUM_BLOCKS,
    mesh: DeviceMesh | None = None,
    timeout: float = 60.0,
) -> ParallelTransformer:
    """Return this process's share of a checkpoint: together the processes are one oracle (tensor parallelism).

    All processes call it with the same arguments, and then run the same program: ``torchrun --nproc-per-node 2
    program.py`` starts them. Each reads its part of the weights from the mapped files. See docs/guides/processes.md.

    Args:
        name_or_path, dtype, max_context: as in ``oracles.load``; a directory of safetensors, no GGUF file.
        device: as in ``oracles.load``; "cuda" is the device of the process's ``LOCAL_RANK``.
        sums: how products that cross processes are added. "blocks": inputs are cut into ``num_blocks`` blocks, whose
            products are gathered and added in the order of the blocks, so that float32 scores on a CPU have the same
            bits for every number of processes; this is checked here. "reduced": by ``all_reduce``, which sends less but
            whose bits may depend on everything, so results say "exact up to numerics".
        num_blocks: for "blocks": a multiple of the number of processes.
        mesh: of one dimension, whose processes share the model, so that several such groups can have one each; None:
            all of ``torch.distributed`` if it was initialised before, else all that were started.
        timeout: seconds after which a silent process counts as gone. With a mesh, or if ``torch.distributed`` was
            initialised before, the timeout of its groups holds instead.

    Returns:
        The oracle; ``oracle.ranks.is_first`` tells which process prints. A process that is alone has the whole model.

    Raises:
        ValueError: as in ``oracles.load``; a GGUF file; unknown sums; a size that the number of processes does not
            divide; the message names the argument and what to give.
        RankLost: another process ended meanwhile.

    Guarantee: every process gets the same logits, and so makes the same decisions; if one is gone or about to score
        other nodes, the others end with an error that names it.

    Cost: see ``ParallelTransformer.bytes_of_pass``; the check of the bits scores about 600 nodes.
    """
    check_choice("sums", sums, Sums)
    where, place = checkpoint_place(device), find_checkpoint(name_or_path)
    asked = checkpoint_dtype(dtype)
    check_context(max_context)
    if place.is_file():
        raise ValueError(f"{place} is a GGUF file, and processes share a Hugging Face directory: give one")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    check_device(where)
    ranks = Ranks.join(mesh, where, timeout)

    def split(config: TransformerConfig) -> tuple[Transformer, Take]:
        share = Share(config, ranks.rank, ranks.count, num_blocks if sums == "blocks" else None)
        return ParallelTransformer(share, ranks), share.take

    model = checkpoint_model(place, asked, where, max_context, as_stored=False, split=split)
    assert isinstance(model, ParallelTransformer)
    model.to(dtype_to_load(asked, model.dtype, where)).eval()
    return model.pack()
