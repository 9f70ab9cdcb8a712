"""Draft from n-grams of the oracle's own Jacobi window, paired with plain decoding.

Beside it stand its parts: the pool with the n-grams of the window alone, with those of the text alone (no window), and
an empty pool, which verifies nothing and has the window's cost.
"""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("lookahead", __doc__))
