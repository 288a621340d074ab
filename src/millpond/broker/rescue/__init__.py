"""Loss of a majority of the voters: what a survivor's folder knows, and a new quorum from what has survived."""
