"""Find, read, redrive and purge dead letters."""
