"""Draft with the oracle's own weights in fewer bits, on its own cache, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "quantized", __doc__)
