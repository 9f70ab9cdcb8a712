"""Draft with an n-gram model, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("ngram", __doc__))
