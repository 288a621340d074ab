"""Pipelines: a small declaration of source, parsing, transformations and jobs, and what runs and watches it."""
