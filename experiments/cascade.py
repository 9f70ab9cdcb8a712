"""Draft with a lookup, and if it finds nothing with an n-gram model, paired with plain decoding."""

import sys

from experiments.harness import script

if __name__ == "__main__":
    sys.exit(script("cascade", __doc__))
