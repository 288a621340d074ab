"""Whole clusters on virtual time: nodes that fail, clients that find their leaders, checkers."""
