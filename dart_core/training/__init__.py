"""Training of draft heads: data from the target itself, losses, trainer, evaluation."""
