"""Up to which batch drafts pay, and what a step is made of."""
