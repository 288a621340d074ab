"""Client authentication: SASL logins and their sessions."""
