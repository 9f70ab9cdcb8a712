"""Train a draft on conversations that a chat model wrote: ``python -m oracles.factory.dialogues.draft --out FOLDER``.

It reads every id through the chat model's own embeddings and writes the ids that the answers need. It learns what the
chat model expected at each token of the answers. The parts hold that, so no pass of the chat model is needed. When the
run has ended, ``--export`` writes the draft's directory and prints its worth on *dev*, with ``--test`` on *test* too.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from exactspec.parser import Parser
from oracles.checkpoints.loading import load_tokenizer, load_trainable
from oracles.factory.dialogues.corpus import Corpus
from oracles.factory.dialogues.draft_acceptance import table_of, worth
from oracles.factory.dialogues.writing import SYSTEM, Turns
from oracles.factory.training.export import export_draft
from oracles.factory.training.loop import Trainer, run
from oracles.factory.training.precision import autocast
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.training_arguments import add_run_arguments, options, precision, resume, with_num_steps
from oracles.factory.training.windows import WindowPlan, Windows
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import DraftHead, ProjectedEmbedding, ProjectedHead, column_of_id
from oracles.transformer.eager import Transformer
from specdec.stats.report import show

WINDOWS = WindowPlan(4096, 512, 1024)


def begin_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids before the first user's words."""
    return Turns.of(tokenizer, SYSTEM).begin


def draft_recipe(vocab_size: int, draft_vocab_size: int) -> Recipe:
    """Return shape and schedule of ``smol-draft``."""
    config = TransformerConfig(
        vocab_size=vocab_size,
        hidden_size=384,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        intermediate_size=1024,
        max_context=8192,
        rope_theta=100000.0,
        draft_vocab_size=draft_vocab_size,
    )
    return Recipe(config, num_steps=4000, matrix_rate=8e-3, other_rate=4e-3)


def new_draft(config: TransformerConfig, table: Tensor, mass: Tensor, seed: int) -> Transformer:
    """Return a draft that has learned nothing but in which directions the embeddings of frequent ids differ most.

    Args:
        config: its shape; it writes as many ids as that says, those that are expected most.
        table: ``[V, W]`` float32, the chat model's embeddings.
        mass: ``[V]`` how often each id is expected.
        seed: of the other initial weights.

    Raises:
        ValueError: the draft is wider than the embeddings.
    """
    assert config.draft_vocab_size is not None
    if config.hidden_size > table.shape[1]:
        raise ValueError(
            f"hidden_size is {config.hidden_size}, and the embeddings that the draft reads are {table.shape[1]} wide: "
            "make the draft as narrow"
        )
    ids = mass.topk(config.draft_vocab_size).indices.sort().values
    model, width = Transformer(config, seed=seed), config.hidden_size
    directions = torch.linalg.svd(table * (mass.float() + 1).sqrt().unsqueeze(1), full_matrices=False)[2][:width]
    inner = table @ directions.t()
    embedding, head = ProjectedEmbedding(table, width), ProjectedHead(table, width, ids)
    embedding.projection.weight = nn.Parameter(directions / inner.std())
    head.projection.weight = nn.Parameter(directions.t() / inner.std() * 0.02)
    model.model.embed_tokens = embedding  # type: ignore[assignment]  # it looks ids up as an nn.Embedding does
    model.lm_head = head
    return model


class RecordedDistillation:
    """Learn what a teacher said of recorded text (``oracles.factory.training.tasks.Task``).

    Rows are places in the corpus, T + 1 side by side, and no ids. What the teacher expected of ids that the draft does
    not write is left out.

    Args:
        model: as ``new_draft`` makes it.
        corpus: on the CPU.
        precision: of the matrix products.
    """

    def __init__(self, model: Transformer, corpus: Corpus, precision: str) -> None:
        assert isinstance(model.lm_head, DraftHead)
        self.model, self.head, self.corpus, self.precision = model, model.lm_head, corpus, precision
        self.column_of = column_of_id(self.head.target_ids, self.head.vocab_size)
        self.identity = f"{len(self.head.target_ids)} of the ids of {len(corpus.likeliest_ids)} answered tokens"

    def loss(self, rows: Tensor) -> Tensor:
        """Return the divergence from the teacher in nats per token of the answers among rows ``[B, T + 1]``."""
        answer = self.corpus.answer_of[rows[:, 1:]]
        wanted = answer >= 0
        with autocast(rows.device.type, self.precision):
            stream = self.model.streams(self.corpus.ids[rows[:, :-1]].long())[-1]
            logits = self.head.columns(self.model.model.norm(stream[wanted]))
        places = answer[wanted].long()
        columns = self.column_of[self.corpus.likeliest_ids[places].long()]
        taught = self.corpus.likeliest_logprobs[places].float().exp() * (columns >= 0)
        learnt = logits.float().log_softmax(-1).gather(1, columns.clamp(min=0))
        return (torch.xlogy(taught, taught) - taught * learnt).sum() / max(len(places), 1)


def main() -> None:
    """Train, say what the draft is worth, and export it."""
    args = _parser().parse_args()
    paths = sorted(args.parts.glob("part-????.safetensors"))[: args.num_parts]
    lender, tokenizer = load_trainable(args.oracle, dtype="float32"), load_tokenizer(args.oracle)
    table = lender.model.embed_tokens.weight.detach()
    begin = begin_of(tokenizer)
    corpus = Corpus.read(paths, "train", begin)
    recipe = with_num_steps(draft_recipe(len(table), args.draft_vocab_size), args)
    model = new_draft(recipe.config, table, corpus.mass(len(table)), args.seed)
    task = RecordedDistillation(model, corpus, precision(args))
    windows = Windows(WINDOWS, torch.arange(len(corpus.ids)), args.seed)
    trainer = Trainer(recipe, windows, options(args), task)
    resume(trainer, args)
    run(trainer)
    if not trainer.may_export:
        return
    for split in ("dev", "test") if args.test else ("dev",):
        found = worth(model, Corpus.read(paths, split, begin))
        (args.out / f"{split}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        show(["", table_of(split, found)])
    if args.export is not None:
        export_draft(model, args.oracle, args.export)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    add_run_arguments(parser)
    add = parser.add_argument
    add("--oracle", default="smollm2", help="the chat model, as oracles.load takes it (default %(default)s)")
    add("--parts", type=Path, default=Path("runs/dialogues"), help="what it wrote (default %(default)s)")
    add("--num-parts", type=int, help="learn from the first so many parts (default: all)")
    add("--draft-vocab-size", type=int, default=8192, help="ids that the draft writes (default %(default)s)")
    add("--test", action="store_true", help="say what it is worth on test too")
    add("--export", type=Path, help="directory of the finished draft")
    return parser


if __name__ == "__main__":
    main()
