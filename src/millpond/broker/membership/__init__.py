"""Registration, heartbeats and leases: which brokers are alive, and what that allows them."""
