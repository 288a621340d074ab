"""`millpond work`: runs workers of a module in processes that are started again when they die."""
