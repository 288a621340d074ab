"""`millpond queue`: work queues."""
