"""Rows and patterns to token ids, labels to token ids."""
