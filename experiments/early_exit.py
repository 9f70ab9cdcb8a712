"""Draft with the oracle's own first layers, on its own cache, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("early_exit", __doc__))
