"""Bytes and values: frames, headers, messages, record batches, compression."""
