"""Draft what most often followed the longest suffix that stands elsewhere, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("suffix_automaton", __doc__))
