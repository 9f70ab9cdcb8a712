"""Draft with a model that has another tokenizer, paired with plain decoding."""

import sys

from experiments.harness.running import script

if __name__ == "__main__":
    sys.exit(script("other_vocabulary", __doc__))
