"""Administration of a cluster: topics, groups and their lag, resets, history, dead letters, transactions.

Typed functions and frozen values over `remote`, for the command line, the console and programs. Nothing here prints,
and everything works with any Kafka cluster, except the history of groups, which only Millpond keeps.
"""
