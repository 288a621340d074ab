"""What each API requires of a client."""
