"""`clozify bench`: methods and rivals on the same draws of labelled rows, on this machine."""
