"""A grid of options into one resumable table, on several processes and machines."""
