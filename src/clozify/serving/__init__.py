"""Implements `clozify serve`: a finished run as an HTTP server with dynamic batching."""
