"""Three-digit arithmetic with its working: the language of the embedded checkpoint ``arithmetic``."""
