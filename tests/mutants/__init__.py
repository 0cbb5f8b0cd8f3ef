"""Mutants of the library: what changes, which tests may notice, and their runs."""
