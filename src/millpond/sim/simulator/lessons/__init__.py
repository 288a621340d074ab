"""Lessons: ready tapes, each with a question to think about before its answer plays."""
