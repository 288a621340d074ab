"""Recovery from the loss of a majority of the voters: reads the surviving folders and forms a new quorum from
them."""
