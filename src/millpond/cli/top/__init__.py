"""`millpond top`: a cluster, live."""
