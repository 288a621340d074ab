"""The files that identify a data folder and record the state its node left it in."""
