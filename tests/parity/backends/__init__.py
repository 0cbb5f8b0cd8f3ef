"""The back-ends of MQBench, each with the table of its differences."""

from parity.backends.tensorrt import TENSORRT
from parity.table import Backend

BACKENDS: tuple[Backend, ...] = (*TENSORRT,)

__all__ = ["BACKENDS"]
