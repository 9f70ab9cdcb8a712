"""Draft with a DFlash or DSpark head, which gives all laws of a block at once, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "block_drafter", __doc__)
