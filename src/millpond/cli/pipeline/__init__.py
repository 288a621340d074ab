"""`millpond pipeline`: declared jobs on Spark."""
