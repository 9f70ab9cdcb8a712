"""Draft with an EAGLE-3 head that reads the oracle's hidden states, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "eagle3", __doc__)
