"""Pure machines alone, on virtual time: quick enough for very many seeds."""
