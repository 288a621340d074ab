"""Share groups (KIP-932): members that work on the same partitions side by side, each record with one of them.

The group coordinator keeps the members and what they are assigned; the share coordinator keeps which records are
finished (see `coordinators/shares`).
"""
