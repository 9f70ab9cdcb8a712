"""One transformer on several processes, each with a share of its heads and widths (tensor parallelism)."""
