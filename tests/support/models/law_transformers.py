"""Transformers whose laws are enumerated: shapes, prompts and sampling."""

from specdec import SamplingParams

PROMPT, MATES = [3, 1], [[0], [1, 2, 0, 3, 3]]  # random trees of two nodes fork after this prompt
SHAPES = {
    "llama": {},
    "sliding window": {"sliding_window": 3},
    "learned positions": {"positions": "learned", "norm": "layer", "activation": "gelu", "gated": False},
    "padded vocabulary": {"padded_vocab_size": 7},
}
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.3)


SIZES = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48}
WIDER = {**SHAPES, "padded vocabulary": {"padded_vocab_size": 64}, "parallel": {"parallel_residual": True}}
TEXTS = ["import os\nimport sys\n\n\ndef main(", "class Reader:\n    def __init__(self", "x = 1\n", "def f(a, b):\n"]
