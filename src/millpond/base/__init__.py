"""Ids, errors, ports and the settings machinery. Standard library only; every other package builds on this one."""
