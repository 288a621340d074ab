"""Every setting once: what a node and a topic can be told, and which of several layers wins."""
