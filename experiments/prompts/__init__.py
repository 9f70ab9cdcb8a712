"""The shipped prompts, and the scripts that made them."""
