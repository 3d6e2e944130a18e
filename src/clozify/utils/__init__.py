"""Small helpers: progress bars, npy arrays, process groups, library settings."""
