"""Ids, errors, ports and the settings machinery. Standard library only; every other room stands on this one."""
