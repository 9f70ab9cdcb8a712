"""Draft with a smaller transformer, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("small_transformer", __doc__))
