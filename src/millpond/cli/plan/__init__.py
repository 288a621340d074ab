"""`millpond plan`: how much hardware a workload needs."""
