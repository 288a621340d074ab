"""Records as Arrow columns: record batches into Arrow, values parsed by a schema, rows into records.

Spark's source and sink and the readers of `analysis` share it; it needs pyarrow and numpy, and fastavro for Avro.
`Parser(format, schema).parse(values)` gives a reason for each bad value. A null value is a tombstone: it is not bad,
its row is null.
"""
