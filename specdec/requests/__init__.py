"""What a user asks for, checked before anything is computed, and where its output ends."""

from specdec.requests.prompt_ids import Message, Prompt, RawPrompt, encode_prompt, list_prompts
from specdec.requests.requests import Request, check_draft_tokens, check_rows, make_requests, seed_of_one
from specdec.requests.stop_lists import Stop, Stops, stops_of
from specdec.requests.stopping import (
    FinishReason,
    TextHolder,
    cut_text,
    first_eos,
    first_stop,
)

__all__ = [
    "FinishReason",
    "Message",
    "Prompt",
    "RawPrompt",
    "Request",
    "Stop",
    "Stops",
    "TextHolder",
    "check_draft_tokens",
    "check_rows",
    "cut_text",
    "encode_prompt",
    "first_eos",
    "first_stop",
    "list_prompts",
    "make_requests",
    "seed_of_one",
    "stops_of",
]
