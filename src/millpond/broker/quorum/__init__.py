"""The quorum of the metadata on the real log, disk and wire."""
