"""What vendors run: `check_target`, `check_estimator`, `check_function`, strategies, exact oracles.  Needs hypothesis."""

from qfunc.testing import integer_oracle, oracle, strategies
from qfunc.testing.check import check_target
from qfunc.testing.estimator_check import check_estimator
from qfunc.testing.function_laws import check_function

__all__ = ["check_estimator", "check_function", "check_target", "integer_oracle", "oracle", "strategies"]


def __dir__() -> list[str]:
    return sorted(__all__)
