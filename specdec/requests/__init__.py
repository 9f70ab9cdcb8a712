"""What a user asks for, checked before anything is computed, and where its output ends."""

from specdec.requests.requests import (
    Message,
    Prompt,
    RawPrompt,
    Request,
    Stop,
    Stops,
    check_batch_size,
    encode_prompt,
    list_prompts,
    make_requests,
    seed_of_one,
    stops_of,
)
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
    "check_batch_size",
    "cut_text",
    "encode_prompt",
    "first_eos",
    "first_stop",
    "list_prompts",
    "make_requests",
    "seed_of_one",
    "stops_of",
]
