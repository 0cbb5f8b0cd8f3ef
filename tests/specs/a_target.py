"""A small target, and what it is made of, to change one thing of."""

from typing import Any

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import Algorithm, Int, Op, Rule, Scheme, Target

U8, S8 = Int(8, signed=False), Int(8)
CONV = Op("conv")
ALGORITHM = Algorithm(MinMax(), Fixed())


def target(**changes: Any) -> Target:
    """It, with other fields."""
    same = {"name": "t", "rules": Rule(CONV, input=Scheme()), "source": "here", "weight": ALGORITHM, "activation": ALGORITHM}
    return Target(**{**same, **changes})


__all__ = ["ALGORITHM", "CONV", "S8", "U8", "target"]
