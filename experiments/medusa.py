"""Draft with Medusa's heads, each for one token further ahead, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "medusa", __doc__)
