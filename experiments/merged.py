"""Draft with a lookup and an n-gram model in one tree, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("merged", __doc__))
