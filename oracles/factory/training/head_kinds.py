"""The kinds of heads that ``train_head`` trains: the options of each, and what makes one that is ready to learn."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oracles.checkpoints.loading import load
from oracles.factory.training.block_distillation import BlockDistillation, describe_dspark, dspark_shape, new_dspark
from oracles.factory.training.draft_distillation import DraftDistillation, draft_shape, new_draft
from oracles.factory.training.eagle3_distillation import Eagle3Distillation, describe_eagle3, new_eagle3, usual_outputs
from oracles.factory.training.exit_distillation import ExitDistillation, last_layers
from oracles.factory.training.export import check_meaning, export_draft, read_target_ids, take_weights
from oracles.factory.training.head_distillation import HeadDistillation
from oracles.factory.training.head_export import eagle3_name, export_head
from oracles.factory.training.head_losses import DSPARK_LOSS
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.lesson import Lesson, served_reader
from oracles.factory.training.medusa_distillation import MedusaDistillation, new_medusa, save_medusa
from oracles.factory.training.training_arguments import precision
from oracles.heads.medusa_files import medusa_name
from oracles.quantisation import FORMATS
from oracles.transformer.eager import Transformer


@dataclass(frozen=True)
class HeadPupil:
    """A head in training, what writes it to a folder, the names of parameters there, and its config.

    ``values``: the config; of a kind whose ``HeadKind.meaning`` is empty it may be left out. ``parts``: networks with
    subfolders of their own, by name; None: everything is in the folder itself.
    """

    task: HeadDistillation
    save: Callable[[Path], None]
    stored_name: Callable[[str], str] = str
    values: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, nn.Module] | None = None

    def begin(self, folder: Path, meaning: Sequence[str]) -> None:
        """Take the weights of a finished head.

        Args:
            folder: of the head.
            meaning: see ``HeadKind``.

        Raises:
            ValueError: its shape is another one, or its config says something else under one of these keys.
        """
        if meaning:
            check_meaning(folder, {key: self.values.get(key, False) for key in meaning})
        for name, part in (self.parts or {"": self.task.model}).items():
            take_weights(part, folder / name, self.stored_name)


@dataclass(frozen=True)
class HeadKind:
    """What ``--kind`` names.

    Attributes:
        options: that it has, and what stands for those that are not given.
        meaning: keys of its config on which the meaning of its weights depends, though no shape does: ``--init``
            refuses a head that differs in one of them. What training would not write there counts as False.
        make: makes one from the arguments, the oracle and the text to learn on.
        has_confidence: whether it tells confidences, which "bce" in ``--loss`` teaches.
    """

    options: Mapping[str, Any]
    meaning: tuple[str, ...]
    make: Callable[[argparse.Namespace, Transformer, HeadText], HeadPupil]
    has_confidence: bool = False


def _target_ids(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> Tensor | None:
    """Return the ids that the head writes; None: all."""
    if args.init is not None and "vocab_size" in KINDS[args.kind].options:
        ids = read_target_ids(args.init, oracle.vocab_size)
        count = oracle.vocab_size if ids is None else len(ids)
        if args.vocab_size not in (None, count):
            raise ValueError(
                f"--vocab-size is {args.vocab_size}, and --init {args.init} writes {count} ids: leave it out"
            )
        return ids
    if args.vocab_size is None or args.vocab_size >= oracle.vocab_size:
        return None
    if args.lm_head == "oracle" and not oracle.config.tie_embeddings:
        raise ValueError(
            "--vocab-size: the rows of this oracle's head are not its embeddings, so that whoever loads a head cannot "
            "borrow some of them: give --lm-head own"
        )
    return text.frequent(args.vocab_size, oracle.vocab_size)


def layer_choice(args: argparse.Namespace, oracle: Transformer) -> tuple[int, ...]:
    """Return the layers of ``--layers``, or EAGLE-3's usual ones."""
    return usual_outputs(oracle.num_layers) if args.layers is None else tuple(sorted({*args.layers}))


def lesson_of(args: argparse.Namespace, oracle: Transformer, text: HeadText, layers: tuple[int, ...]) -> Lesson:
    """Return what a head that reads the outputs of some layers learns from."""
    # The pass that features come of, if not the one that trains.
    served = None if args.served is None else load(args.oracle, device="cpu", arithmetic=args.served)
    reader, chosen = None if served is None else served_reader(served, layers), precision(args)
    ids, rounded = _target_ids(args, oracle, text), FORMATS.get(args.learn_as)
    return Lesson(oracle, layers, ids, text, args.num_draft_tokens, args.loss, args.discount, chosen, reader, rounded)


def _eagle3(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> HeadPupil:
    lesson = lesson_of(args, oracle, text, layer_choice(args, oracle))
    inner = args.intermediate_size or oracle.config.intermediate_size
    values = describe_eagle3(lesson, args.verifier or args.oracle, inner)
    network = new_eagle3(values, lesson, args.lm_head == "own", args.seed)
    return HeadPupil(
        Eagle3Distillation(lesson, network),
        lambda folder: export_head(network, values, folder, lesson.target_ids),
        eagle3_name,
        values,
    )


def _dspark(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> HeadPupil:
    lesson = lesson_of(args, oracle, text, layer_choice(args, oracle))
    ids = lesson.target_ids
    mask = text.rarest(oracle.vocab_size) if args.mask_id is None else args.mask_id
    if not 0 <= mask < oracle.vocab_size:
        raise ValueError(f"--mask-id is {mask}; the oracle's ids are 0..{oracle.vocab_size - 1}")
    inner = args.intermediate_size or oracle.config.intermediate_size
    shape = dspark_shape(
        lesson, num_layers=args.own_layers, intermediate_size=inner, markov_rank=args.markov_rank, mask_id=mask,
        own_head=args.lm_head == "own",
    )  # fmt: skip
    network = new_dspark(shape, lesson, args.seed)
    values = describe_dspark(shape, args.verifier or args.oracle)
    task = BlockDistillation(lesson, network, shape, args.anchors)
    return HeadPupil(task, lambda folder: export_head(network, values, folder, ids), values=values)


def _medusa(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> HeadPupil:
    lesson = lesson_of(args, oracle, text, (oracle.num_layers - 1,))
    network = new_medusa(lesson, args.own_layers)
    name = args.verifier or args.oracle
    task = MedusaDistillation(lesson, network)
    return HeadPupil(
        task, lambda folder: save_medusa(network, name, folder), lambda key: medusa_name(key, args.own_layers)
    )


def _early_exit(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> HeadPupil:
    layers = last_layers(sorted({*args.num_layers}), oracle.num_layers)
    task = ExitDistillation(lesson_of(args, oracle, text, layers), args.inner_size, args.seed)
    return HeadPupil(task, task.save, parts=task.adapters)


def _draft_model(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> HeadPupil:
    lesson = lesson_of(args, oracle, text, ())
    table = oracle.model.embed_tokens.weight.detach().cpu()
    ids = torch.arange(lesson.num_written) if lesson.target_ids is None else lesson.target_ids
    shape = draft_shape(len(table), len(ids), args.hidden_size, args.own_layers, args.intermediate_size)
    model = new_draft(shape, table, ids, text.numbers(len(table)), args.seed).to(oracle.device)
    return HeadPupil(DraftDistillation(lesson, model), lambda folder: export_draft(model, args.oracle, folder))


_READS = {"layers": None, "learn_as": None, "vocab_size": None, "lm_head": "oracle", "intermediate_size": None}
# Of a kind that learns several tokens of a draft.
_COUNTS = {"discount": 0.8}
KINDS: dict[str, HeadKind] = {
    "eagle3": HeadKind(
        {"num_draft_tokens": 3, "loss": "kl", **_COUNTS, **_READS},
        ("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "norm_output"),
        _eagle3,
    ),
    "dspark": HeadKind(
        {
            **{"num_draft_tokens": 6, "loss": DSPARK_LOSS, **_COUNTS, **_READS},
            **{"own_layers": 2, "markov_rank": 16, "anchors": 128, "mask_id": None},
        },
        ("aux_hidden_state_layer_ids", "mask_token_id", "sample_from_anchor"),
        _dspark,
        has_confidence=True,
    ),
    "medusa": HeadKind({"num_draft_tokens": 4, "loss": "kl", **_COUNTS, "own_layers": 1}, (), _medusa),
    "early_exit": HeadKind({"loss": "kl", "num_layers": [1, 2, 3], "inner_size": 768}, (), _early_exit),
    "draft_model": HeadKind(
        {
            **{"loss": "kl", "vocab_size": 8192, "learn_as": None},
            **{"hidden_size": 384, "intermediate_size": 1024, "own_layers": 2},
        },
        (),
        _draft_model,
    ),
}
