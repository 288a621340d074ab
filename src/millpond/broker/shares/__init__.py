"""Share groups on the leader of a partition: who holds which records, and until when."""
