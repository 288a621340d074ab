"""Spark SQL, read without Spark: whether it parses, and which columns it needs.

Only what `millpond pipeline check` needs of the language. What it refuses, Spark refuses too; what it does not
know, it says so (`Beyond`) and leaves to Spark. The tests hold it against Spark's own parser.
"""
