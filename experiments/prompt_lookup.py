"""Draft by copying what followed the same tokens before, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "prompt_lookup", __doc__)
