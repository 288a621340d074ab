"""Encoding: frames, headers, messages, record batches, compression."""
