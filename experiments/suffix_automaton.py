"""Draft what most often followed the longest suffix that occurs elsewhere, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "suffix_automaton", __doc__)
