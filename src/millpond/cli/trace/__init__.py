"""`millpond trace`: where a record's time goes."""
