"""Implements `clozify studio`: a local web page to write a task, label rows, train and try the classifier."""
