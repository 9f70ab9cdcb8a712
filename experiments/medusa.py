"""Draft with Medusa's heads, each for a token further ahead, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("medusa", __doc__))
