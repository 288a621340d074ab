"""Simulated clients: requests, producers, readers, group members and transactional workers."""
