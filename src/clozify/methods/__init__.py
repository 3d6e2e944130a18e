"""The paper, one module a step: tensors and rows in, results out; no files and no processes."""
