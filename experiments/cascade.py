"""Draft with a lookup, or with an n-gram model if that finds nothing, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "cascade", __doc__)
