"""Prints the counts of every back-end: `PYTHONPATH=tests python -m parity`."""

from parity.backends import BACKENDS
from parity.compare import compare, table

print(table([compare(backend) for backend in BACKENDS]))
