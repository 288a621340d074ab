"""What keeps logs on the disk: flushes, checkpoints, and the room that is left."""
