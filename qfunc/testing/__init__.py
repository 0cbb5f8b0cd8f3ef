"""What vendors run: `check_target`, strategies of models and qparams, exact oracles.  Needs hypothesis."""

from qfunc.testing import integer_oracle, oracle, strategies
from qfunc.testing.check import check_target

__all__ = ["check_target", "integer_oracle", "oracle", "strategies"]
