"""Triton kernels; they are imported only where they run."""
