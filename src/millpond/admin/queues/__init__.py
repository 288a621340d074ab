"""Work queues: each is a topic as one share group reads it."""
