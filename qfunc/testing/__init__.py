"""Checks of targets, estimators and functions for vendors and users, small models, strategies and exact oracles.

This package needs hypothesis.
"""

from qfunc.testing import integer_oracle, oracle, strategies
from qfunc.testing.estimator_check import check_estimator
from qfunc.testing.function_check import check_function
from qfunc.testing.kind_check import check_each_kind
from qfunc.testing.small_models import Block, SmallNet
from qfunc.testing.target_check import check_target

__all__ = [
    "Block", "SmallNet", "check_each_kind", "check_estimator", "check_function", "check_target", "integer_oracle", "oracle",
    "strategies",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
