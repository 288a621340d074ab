"""One request on its way through the broker: its connection, its context, and its reply."""
