"""The flows of the project are those of the declaration beside it."""

from millpond.spark.pipelines.declarative import define

define("orders.toml")
