"""The console: any Kafka cluster in the browser, as a separate process (`python -m millpond.console`).

`admin` does the work. Here are only the HTTP handlers, their limits, and the pages.
"""
