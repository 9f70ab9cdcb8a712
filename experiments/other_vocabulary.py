"""Draft with a model that has another tokenizer, paired with plain decoding."""

from exactspec.ending import as_program
from experiments.harness.running import script

if __name__ == "__main__":
    as_program(script, "other_vocabulary", __doc__)
