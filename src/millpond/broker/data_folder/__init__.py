"""The files that say whose data folder this is, and what state its node left it in."""
