"""An exported checkpoint, read by Hugging Face's own Llama, is the model that was trained."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from oracles.checkpoints.loading import load_trainable
from oracles.factory.train import TOKENIZER
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.recipes import RECIPES
from oracles.transformer.eager import Transformer


def test_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    config = RECIPES["tiny"].recipe.config
    export_checkpoint(Transformer(config, seed=1).state_dict(), config, Tokenizer.from_file(str(TOKENIZER)), tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_trainable(tmp_path)
    tokens = torch.randint(config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=0.0)
