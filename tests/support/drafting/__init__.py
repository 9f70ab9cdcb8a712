"""Sources, drafts and verdicts: made by hand, watched, or compared with a second way."""
