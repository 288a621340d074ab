"""Changes to topics and settings that the node makes or checks for its clients."""
