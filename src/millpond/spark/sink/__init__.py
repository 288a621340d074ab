"""Rows into topics: `df.write.format("millpond")` and `df.writeStream…format("millpond")`."""
