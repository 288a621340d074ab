"""`millpond log`: the files of a data folder."""
