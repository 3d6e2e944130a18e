"""The paper's tables and figures, run again: its data, its cells, its layout, and its values beside ours."""
