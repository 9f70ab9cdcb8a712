"""Compare all draft strategies with plain decoding on the same prompts, and say why each is as fast as it is."""

import sys

from experiments.harness.running import comparison

if __name__ == "__main__":
    sys.exit(comparison(__doc__))
