"""Training of the embedded checkpoints: data order, optimisers, loop, export and held-out bits per byte."""
