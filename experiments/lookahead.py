"""Draft from n-grams of the oracle's own Jacobi window, paired with plain decoding.

Three arms show its parts: a pool of the window's n-grams only, a pool of the text's n-grams only (no window), and an
empty pool, which verifies nothing and costs as much as the window.
"""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "lookahead", __doc__)
