"""What a pass has to do at least, and what this machine does with it; see ``__main__``."""
