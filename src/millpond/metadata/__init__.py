"""The cluster's metadata as a state machine. Pure: decide functions read an image, only `replay` changes it."""
