"""What the embedded checkpoints are worth: bits per byte, loops in their text, and how far drafts agree with them."""
