"""`millpond work`: runs the workers of a module in supervised processes."""
