"""`millpond help`: the pages of docs/ in the terminal."""
