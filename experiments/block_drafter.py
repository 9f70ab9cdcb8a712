"""Draft with a DFlash or DSpark head, which gives the laws of a block at once, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("block_drafter", __doc__))
