"""Which strategy pays on this machine with this oracle, how long its drafts should be, and why others do not."""
