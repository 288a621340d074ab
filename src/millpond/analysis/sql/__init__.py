"""SQL over topics with DuckDB, in this process: topics are tables, and a query reads only what it needs of them."""
