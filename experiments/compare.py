"""Compare all draft strategies with plain decoding on the same prompts, and say why each is as fast as it is."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "compare", __doc__)
