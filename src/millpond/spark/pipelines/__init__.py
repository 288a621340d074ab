"""Pipelines: short declarations of source, parsing, transforms and jobs, and the code that runs and monitors them."""
