"""Draft with the oracle's own first layers, on its own cache, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "early_exit", __doc__)
