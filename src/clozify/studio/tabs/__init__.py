"""The four tabs of the studio's page: task, labels, run, try."""
