"""Where a record's time goes on its way from a producer to a reader."""
