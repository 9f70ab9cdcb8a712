"""Requests that arrive over time: latency and goodput at several request rates, with and without drafts."""
