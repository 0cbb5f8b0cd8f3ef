"""`quantize` refuses what a file cannot hold where the graph decides it, and `deploy` writes what `quantize` accepts."""

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.conv = form, nn.Conv2d(3, 4, 3)
        self.register_buffer("mask", torch.eye(6) > 0)
        self.matrices = nn.Parameter(torch.randn(2, 6, 5))

    def forward(self, x):
        y = self.conv(x)
        if self.form == "fill where smaller":
            return y.masked_fill(y < 0, -1.0)
        if self.form == "choice":
            return torch.where(y >= 0.5, y, 0.1 * y)
        if self.form == "float comparison":
            return (y > 0).float() * y
        if self.form == "constant matrices":
            return y.unsqueeze(2) @ self.matrices
        if self.form == "largest of all":
            return y * 0.5 + y.amax()
        if self.form == "constant mask":
            return y.masked_fill(self.mask, 0.0)
        if self.form == "constant matrix":
            return y @ self.matrices[0]
        return y * 0.5 + y.amax((2, 3), keepdim=True)


FORMS = (
    "fill where smaller", "choice", "float comparison", "constant matrices", "largest of all", "constant mask",
    "constant matrix", "largest of channels",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["litert", "executorch_xnnpack", "tosa", "ncnn"])
def test_deploy_writes_what_quantize_accepts(name, form):
    target, x = getattr(targets, name), torch.randn(2, 3, 8, 8)
    try:
        quantized = qfunc.quantize(target)(Net(form).eval())
    except SpecError:
        return
    assert qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(quantized)).files


def test_the_message_names_the_op_and_the_cure():
    with pytest.raises(SpecError) as error:
        qfunc.quantize(targets.litert)(Net("constant matrices"))
    assert str(error.value).startswith(
        "target 'litert', op 'matmul': found the kind 'matmul' with matrices=True, wanted an op that TfliteLowering() writes: "
        "FULLY_CONNECTED takes one constant matrix. Multiply by one matrix, or compute the batch of matrices."
    )
