"""Draft with an n-gram model, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "ngram", __doc__)
