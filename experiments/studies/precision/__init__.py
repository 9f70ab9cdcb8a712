"""What fewer bits cost and save: every precision as an oracle, and as a draft for the float32 oracle."""
