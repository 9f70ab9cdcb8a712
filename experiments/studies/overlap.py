"""Tell from two tokenizers alone how much of a target's text a draft model with the other one can draft.

``python -m experiments.studies.overlap code-draft smollm2`` reads no weights. It counts which pieces of the target's
vocabulary are also, byte for byte, in the draft model's, and how often they occur in text. ``drafts.OtherVocabulary``
with ``mapping="intersection"`` drafts only these, so the share of common ids bounds its acceptance, and the mean run
bounds what a draft can be worth.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from oracles.checkpoints.loading import load_tokenizer, num_ids
from specdec.drafting import SharedPieces, Spelling, piece_bytes
from specdec.prompts import load_prompts
from specdec.stats import Table
from specdec.stats.report import show

SHIPPED = Path(__file__).parents[1] / "prompts"
Row = dict[str, str]


def pieces_row(name: str, tokenizer: Any, common: int) -> Row:
    """Return what a table says of a vocabulary.

    Args:
        name: of it.
        tokenizer: that has it.
        common: how many of its pieces the other one has.
    """
    size = num_ids(tokenizer)
    contents = [len(content) for content in piece_bytes(tokenizer, range(size)) if content]
    return {
        "tokenizer": name,
        "ids": f"{size:,}",
        "common": f"{common:,} ({common / size:.1%})",
        "bytes of a piece": f"{np.mean(contents):.2f}",
    }


def text_row(name: str, texts: Sequence[str], target: Any, shared: SharedPieces) -> Row:
    """Return what a table says of some texts.

    Args:
        name: of them.
        texts: that are read, one or more.
        target: the target's tokenizer.
        shared: its pieces that the model has.

    Raises:
        ValueError: they have no ids.
    """
    ids = [target.encode(text, add_special_tokens=False).ids for text in texts]
    count = sum(map(len, ids))
    if not count:
        raise ValueError(f"--prompts: the target's tokenizer makes no ids of the texts of {name}: give others")
    is_common = [[shared.to_model[one] >= 0 for one in row] for row in ids]
    runs = [len(list(run)) for row in is_common for common, run in groupby(row) if common]
    return {
        "prompts": name,
        "ids of the target": f"{count:,}",
        "common": f"{sum(map(sum, is_common)) / count:.1%}",
        "mean run of common ids": f"{np.mean(runs) if runs else 0:.2f}",
        "ids of the model for one": f"{sum(len(spell_ids(row, shared)) for row in ids) / count:.2f}",
    }


def spell_ids(ids: Sequence[int], shared: SharedPieces) -> list[int]:
    """Return how a model reads ids of the target."""
    spelling = Spelling(shared)
    for one in ids:
        spelling.append(one)
    return spelling.own


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of the vocabularies and one of the texts."""
    parser = Parser(__doc__)
    add = parser.add_argument
    place = "embedded or published name, checkpoint directory, tokenizer.json or GGUF file"
    add("draft", metavar="DRAFT", help=f"draft model's tokenizer: {place}")
    add("target", metavar="TARGET", help="oracle's tokenizer, likewise")
    add("--prompts", nargs="+", default=sorted(map(str, SHIPPED.glob("*.jsonl"))), help="files of text (all shipped)")
    args = parser.parse_args(argv)
    with refusing("overlap"):
        draft, target = load_tokenizer(args.draft), load_tokenizer(args.target)
        texts = [(Path(file).stem, [prompt.text for prompt in load_prompts(file)]) for file in args.prompts]
        shared = SharedPieces(draft, num_ids(draft), target, num_ids(target))
        rows = [(args.draft, draft), (args.target, target)]
        tables = [
            Table("Vocabularies", [pieces_row(name, one, shared.target_ids.size) for name, one in rows]),
            Table("Texts", [text_row(name, text, target, shared) for name, text in texts]),
        ]
    show(tables)


if __name__ == "__main__":
    as_program(main)
