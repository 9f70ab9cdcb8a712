"""Conversations that a chat model holds with itself, for its drafts to learn on.

``documents`` gathers free texts out of packages, ``tasks`` says what is asked, ``cleaning`` which questions are kept,
``writing`` lets the model write, ``parts`` and ``shards`` hold the files.
"""
