"""Draft from n-grams of the oracle's own Jacobi window, paired with plain decoding.

Three more arms show its parts: only the window's n-grams in the pool, only the text's n-grams (no window), and an empty
pool, which verifies nothing and costs what the window costs.
"""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "lookahead", __doc__)
