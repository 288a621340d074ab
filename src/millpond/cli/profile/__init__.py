"""`millpond profile`: clusters by names of one's own."""
