"""Consumer groups: members, assignments and committed offsets."""
