"""The training loop, its losses and its optimizer."""
