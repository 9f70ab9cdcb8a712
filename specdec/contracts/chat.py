"""What an oracle that answers in conversations brings along: how a conversation becomes a prompt."""

from typing import Any, Protocol


class ChatEncoder(Protocol):
    """Turns conversations into prompts; ``specdec.prompts.chat.ChatTemplate`` is one."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer; empty if nobody knows."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end an answer too, and are cut off."""

    def encode(self, messages: Any) -> list[int]:
        """Return the ids of a list of messages, up to where the answer begins.

        Raises:
            ValueError: a message is unusable; with its number.
        """
