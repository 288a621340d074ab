"""Where the parts meet: connections, dispatch, partitions, waits, and one file per API key in `apis/`."""
