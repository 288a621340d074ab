"""Requests that this node passes on to the controller for its clients."""
