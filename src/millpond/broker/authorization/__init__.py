"""The ACL operations that each API requires."""
