"""`millpond config`: settings of topics, nodes and groups."""
