"""The fake world behind the ports: time, disk and network made of memory and a seed. Same seed, same run."""
