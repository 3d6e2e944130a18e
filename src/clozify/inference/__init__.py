"""What is done with a finished run, or with a task before any training."""
