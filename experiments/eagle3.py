"""Draft with an EAGLE-3 head that reads the oracle's hidden states, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("eagle3", __doc__))
