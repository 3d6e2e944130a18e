"""The paper's steps, one module each; every module exports one function of its own name."""
