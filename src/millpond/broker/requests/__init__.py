"""One request on its way through the broker: its connection, its call, and its reply."""
