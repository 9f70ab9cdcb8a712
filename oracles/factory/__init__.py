"""Where models come from: corpora, own text, training, distillation, and what a checkpoint is worth."""
