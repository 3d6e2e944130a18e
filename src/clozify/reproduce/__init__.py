"""Runs the paper's tables and figures again and compares the results with the paper's values."""
