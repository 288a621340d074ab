"""Writing records for producers, and acknowledging them."""
