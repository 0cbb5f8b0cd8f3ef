"""Checks of targets, estimators and functions for vendors and users, strategies and exact oracles; needs hypothesis."""

from qfunc.testing import integer_oracle, oracle, strategies
from qfunc.testing.estimator_check import check_estimator
from qfunc.testing.function_check import check_function
from qfunc.testing.target_check import check_target

__all__ = ["check_estimator", "check_function", "check_target", "integer_oracle", "oracle", "strategies"]


def __dir__() -> list[str]:
    return sorted(__all__)
