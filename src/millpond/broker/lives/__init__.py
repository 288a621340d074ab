"""Who this node is, that it lives, and what the controller knows of the lives of others."""
