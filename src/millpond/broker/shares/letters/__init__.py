"""Dead letters of share groups, written by the leader of the partition whose records were given up."""
