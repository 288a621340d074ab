"""Logins: who is at the other end of a connection."""
