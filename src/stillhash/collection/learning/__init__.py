"""What a collection learns: the trainer, its evaluation, votes, doubtful labels and suggestions."""
