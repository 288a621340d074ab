"""The share coordinator: which records of a partition a share group has finished, and how often it tried others."""
