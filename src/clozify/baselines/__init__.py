"""What PET is compared with, one module each; every module exports one function of its own name."""
