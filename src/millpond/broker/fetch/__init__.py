"""Fetches of consumers and followers: reading partitions, waiting for records, and fetch sessions.

Every fetch reads partitions (`partition_reads`), warms ranges that are not in memory (`page_cache`), and waits and
wakes as a `PendingFetch`. There are two kinds of sessions: a consumer's is a list of partitions, and each of its
fetches reads all of them (`consumer_fetch`, and `short_path` for a single partition); a follower's watches its
partitions from one fetch to the next, and each fetch reads only those that have changed (`replica_sessions`).
"""
