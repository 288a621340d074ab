"""The listeners of a node and the connections of its clients."""
