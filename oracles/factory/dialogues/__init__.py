"""Conversations that a chat model holds with itself, for its drafts to learn on.

``documents`` gathers free texts out of packages, ``dialogue_tasks`` says what is asked, ``writing`` lets the model
write and keeps what has no fault, ``dialogue_parts`` and ``shards`` hold the files.
"""
