"""Questions about drafts, models and machines, each with a script of its own, on the harness of all experiments."""
