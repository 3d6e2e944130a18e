"""The masked LM that answers cloze questions, and the final classifier."""
