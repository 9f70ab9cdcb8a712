"""Draft with a lookup, or with an n-gram model if that finds nothing, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("cascade", __doc__))
