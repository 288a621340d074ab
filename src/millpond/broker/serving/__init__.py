"""One connection: its bytes, its requests in order, the table of APIs and its replies."""
