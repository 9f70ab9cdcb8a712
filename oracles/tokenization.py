"""The tokenizer of the embedded checkpoints: byte-level BPE for source code, trained on the train split only.

``python -m oracles.tokenization --out oracles/embedded/code/tokenizer.json`` makes it.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from oracles.corpus import read_split

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 3072
# Line ends with the indent that follows | a word with the space before it | digits | signs | other white space.
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
        ValueError: where the tokenizer has no such token.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT}; make one with `python -m oracles.tokenization`")
    return end


def main() -> None:
    """Train the tokenizer on the train split, write it and print the bytes per token of both splits."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="path of the tokenizer.json to write")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    args = parser.parse_args()
    train = [source.text for source in read_split("train")]
    tokenizer = train_tokenizer(train, args.vocab_size)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out))
    for name, texts in (("train", train), ("heldout", [source.text for source in read_split("heldout")])):
        num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
        num_bytes = sum(len(text.encode()) for text in texts)
        print(f"{name}: {num_tokens:,} tokens, {num_bytes / num_tokens:.3f} bytes a token")


if __name__ == "__main__":
    main()
