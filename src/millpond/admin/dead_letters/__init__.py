"""Dead letters: which topics hold them, what is in them, sending them back each once, cutting off what is done."""
