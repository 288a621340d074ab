"""The transaction coordinator: the producer of each transactional id, and the outcome of each transaction."""
