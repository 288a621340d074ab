"""`millpond trace`: where a record spends its time."""
