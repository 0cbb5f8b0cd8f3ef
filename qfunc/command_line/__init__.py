"""The commands of `python -m qfunc`."""
