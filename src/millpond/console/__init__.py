"""The console: a cluster in the browser, any Kafka cluster. A process of its own (`python -m millpond.console`).

What it knows comes from `admin`. Here are only the ways to ask over HTTP, their limits, and the pages.
"""
