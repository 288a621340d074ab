"""Who may do what, and what an API needs."""
