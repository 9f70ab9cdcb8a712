"""An oracle, a small transformer that drafts for it, and prompts: what studies of drafts alone decode."""

from collections.abc import Mapping
from typing import Any

from exactspec.parser import Parser, positive
from experiments.harness.arguments import add_placement, add_prompts
from experiments.harness.arms import decodable_prompts
from experiments.harness.conversations import add_template_options, as_conversations
from experiments.harness.models import AnyModel, load_model, load_oracle
from experiments.harness.thread_check import take_threads
from specdec.contracts import check_vocabulary
from specdec.prompts import load_prompts
from specdec.requests import Prompt


def pair_parser(description: str | None, num_prompts: int, max_new_tokens: int) -> Parser:
    """Return a parser of the options of such a study; the numbers are defaults."""
    parser = Parser(description)
    add = parser.add_argument
    add("--oracle", default="code", help="embedded or published name, checkpoint directory or GGUF file (%(default)s)")
    add("--model", default="code-draft", help="the small transformer (%(default)s)")
    add_prompts(parser, num_prompts)
    add("--max-new-tokens", type=positive, default=max_new_tokens, help="most new tokens per prompt (%(default)s)")
    add_template_options(parser)
    add_placement(parser)
    return parser


def load_pair(arguments: Mapping[str, Any]) -> tuple[AnyModel, AnyModel, list[Prompt]]:
    """Return the oracle, the small transformer and the prompts that fit, and set the number of threads.

    Raises:
        ValueError: one of them cannot be used, or the models have other vocabularies.
    """
    take_threads(arguments["threads"])
    oracle, model = load_oracle(arguments), load_model(arguments["model"], arguments)
    check_vocabulary("--model", model.vocab_size, model.tokenizer, oracle)
    prompts = load_prompts(arguments["prompts"], arguments["column"], arguments["num_prompts"])
    asked = as_conversations(prompts, oracle, arguments)
    return oracle, model, [prompt.start for prompt in decodable_prompts(oracle, asked, arguments["max_new_tokens"])]
