"""Dead letters: finds, reads, redrives and purges them."""
