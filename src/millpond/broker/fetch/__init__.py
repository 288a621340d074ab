"""Reading records for consumers and followers."""
