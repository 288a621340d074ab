"""The pure state machines alone, on virtual time: fast enough for very many seeds."""
