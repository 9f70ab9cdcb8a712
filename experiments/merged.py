"""Draft with a lookup and an n-gram model in one tree, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "merged", __doc__)
