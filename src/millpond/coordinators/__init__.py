"""Groups and transactions as replicated state machines over internal topics, on a shared runtime."""
