"""A Spark SQL parser without Spark: checks the syntax and finds the columns that a text needs.

It covers what `millpond pipeline check` needs. Spark refuses everything that it refuses; for SQL that it does not
support it raises `Beyond` and leaves the check to Spark. The tests compare it with Spark's own parser.
"""
