"""`millpond sql`."""
