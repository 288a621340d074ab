"""A share partition in a run: leaders that change, members that fail, a coordinator that is sometimes away."""
