"""Draft with the oracle's own weights in fewer bits, on its own cache, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("quantized", __doc__))
