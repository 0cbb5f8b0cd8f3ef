"""What the tests of legality share: a small network, a chip, and what quantize says of them."""

import pytest
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.frontend.capture import capture
from qfunc.placement.legality.constraints import violations
from qfunc.placement.place import plan
from qfunc.specs import Int, Op, Rule, Scheme, ZeroPoint

U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
HERE = {"because": "guide, 2"}
FLOAT = "or leave the op in float by edit.skip."


class Net(nn.Module):
    """conv-relu, pool, linear: one tensor of each role."""

    def __init__(self, act=nn.ReLU) -> None:
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(2, 3, 3), act(), nn.Linear(3, 4)

    def forward(self, x):
        """Scores."""
        return self.fc(self.act(self.conv(x)).mean((2, 3)))


def chip(*legality, rules=None, **changes):
    """A chip with uint8 affine tensors, and what it refuses."""
    default = Rule(Op(("conv", "linear")), input=U8, weight=Scheme(Int(8, low=-127)), output=U8)
    made = {"name": "chip", "rules": rules or default, "fusions": (), "ties": (), "kernels": (), **changes}
    return evolve(targets.tensorrt, **made, legality=legality)


def refusal(target, net=None):
    """The message of quantize."""
    with pytest.raises(SpecError) as e:
        qfunc.quantize(target)(net or Net())
    return str(e.value)


def found(target, net=None):
    """(op, slot, tensor) of every breach."""
    model = capture()(net or Net())
    return [(b.op, b.slot, b.tensor) for b in violations(plan(model, target), target)]
