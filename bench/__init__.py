"""Measures a node from outside: `python -m bench` starts one, drives it with clients and prints a table."""
