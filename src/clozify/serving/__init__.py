"""A finished run behind HTTP: a model held in memory, a queue that makes batches, an application, a server."""
