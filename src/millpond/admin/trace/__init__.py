"""End-to-end latency of a record from producer to consumer, by hop."""
