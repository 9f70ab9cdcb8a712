"""Draft with a smaller transformer, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "small_transformer", __doc__)
