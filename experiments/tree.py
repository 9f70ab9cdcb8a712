"""Draft a tree with a small model, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("tree", __doc__))
