"""Rows and labels from files, hub data sets or memory; few-shot selection; predictions out."""
