"""Groups and transactions as replicated state machines over internal topics, on one runtime that they share."""
