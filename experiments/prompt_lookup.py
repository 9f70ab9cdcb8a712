"""Draft by copying what followed the same tokens before, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("prompt_lookup", __doc__))
