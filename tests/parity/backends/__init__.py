"""The back-ends of MQBench, each with the table of its differences."""

from parity.backends.academic import ACADEMIC
from parity.backends.nnie import NNIE
from parity.backends.tensorrt import TENSORRT
from parity.backends.total_int import TOTAL_INT
from parity.table import Backend

BACKENDS: tuple[Backend, ...] = (
    *TENSORRT,
    *TOTAL_INT,
    *NNIE,
    *ACADEMIC,
)

__all__ = ["BACKENDS"]
