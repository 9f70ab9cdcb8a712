"""The tokenizer of the embedded checkpoints: byte-level BPE for source code, trained on the train split only.

``python -m oracles.checkpoints.tokenization --out oracles/embedded/code/tokenizer.json`` makes it from a sample of the
split's files (``SAMPLE_BYTES``). More text would take minutes and hardly change the pieces of a few thousand ids.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from oracles.factory.corpus import SourceFile, read_split
from specdec.system import write_whole

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 3072
SAMPLE_BYTES = 20_000_000
# Line ends with the indent after them | a word with the space before it | digits | signs | other white space.
PIECES = r"(?:\r?\n[ \t]*)+| ?[\p{L}_]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}_]+|[^\S\n]+(?!\S)|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return a byte-level BPE tokenizer whose id 0 is ``END_OF_TEXT``.

    Args:
        texts: the training texts, in any order.
        vocab_size: number of pieces, the 256 bytes and the end-of-text token included.

    *Guarantee*: ``decode(encode(x).ids, skip_special_tokens=False) == x`` for every string of Unicode scalar values.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of ``END_OF_TEXT``.

    Raises:
        ValueError: the tokenizer has no such token.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise ValueError(
            f"the tokenizer has no {END_OF_TEXT}; make one with `python -m oracles.checkpoints.tokenization`"
        )
    return end


def sample(sources: Iterable[SourceFile], num_bytes: int = SAMPLE_BYTES) -> list[str]:
    """Return the texts of the first files, in the order of their hashes, that together hold at least ``num_bytes``."""
    texts, total = [], 0
    for source in sorted(sources, key=lambda source: source.entry.sha256):
        if total >= num_bytes:
            break
        texts.append(source.text)
        total += source.entry.num_bytes
    return texts


def bytes_per_token(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the number of UTF-8 bytes of some texts divided by the number of their tokens."""
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    return sum(len(text.encode()) for text in texts) / num_tokens


def main(argv: Sequence[str] | None = None) -> None:
    """Train the tokenizer on a sample of the train split, write it, and print its bytes per token there and on dev."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="path of the tokenizer.json to write")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--root", type=Path, help="the gathered corpus (runs/corpus)")
    args = parser.parse_args(argv)
    with refusing("oracles.checkpoints.tokenization"):
        texts, dev = sample(read_split("train", args.root)), [one.text for one in read_split("dev", args.root)]
        tokenizer = train_tokenizer(texts, args.vocab_size)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(args.out, tokenizer.to_str(pretty=True))
    for name, measured in (("the sample of train", texts), ("dev", dev)):
        print(f"{name}: {bytes_per_token(tokenizer, measured):.3f} bytes a token")


if __name__ == "__main__":
    as_program(main)
