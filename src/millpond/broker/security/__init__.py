"""Authentication mechanisms, the authorizer, quotas and connection limits."""
