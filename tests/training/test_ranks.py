"""Training in two processes is training in one on the batches of both; a checkpoint goes from one process to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import qfunc
from qfunc import recipes, targets
from qfunc.errors import CalibrationError
from tests.processes import start_processes
from tests.training.nets import batch, loss_of, net, student
from tests.training.ranks import CASES, NOISY, made, other, side_by_side, steps, trained


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What this process and the other found, and what the other saved."""
    folder = tmp_path_factory.mktemp("ranks")
    started = start_processes(other, (str(folder),), 1, join=False)
    mine = side_by_side(0, str(folder))
    while not started.join():
        pass
    done = torch.load(folder / "done.pt")
    return {"cases": (mine, done["cases"]), "half": torch.load(folder / "half.pt"), "resumed": done["resumed"]}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(name: str, found: Any) -> None:
    """Gradients of scales and offsets too: those of the whole batch, of which one process has 5 examples, the other 3."""
    want = trained(made(name, sync=False), slice(0, 8), 1)
    both = [cases[name] for cases in found["cases"]]
    for each in both:
        assert each["gradients"].keys() == want["gradients"].keys()
        for key, gradient in want["gradients"].items():
            # Sums of at most 2^9 products in float64 in another order; scales keep 24 bits, of each part and of the whole,
            # and the scales that follow a frozen norm hand its gamma such a gradient.
            exact = gradient.dtype is torch.float64 and not key.startswith("norm")
            near = 1e-10 if exact else 2.0**-21
            largest = float(gradient.abs().max())
            torch.testing.assert_close(each["gradients"][key], gradient, rtol=0, atol=near * largest + 1e-14, msg=key)
        for key, value in want["state"].items():
            # After a step scales differ by 2^-23 of themselves, and with them all else.
            torch.testing.assert_close(each["state"][key], value, rtol=1e-5, atol=1e-6, msg=key)
    for key, value in both[0]["state"].items():
        assert torch.equal(both[1]["state"][key], value), f"{key} differs between the processes"


@pytest.mark.thorough
def test_a_checkpoint_of_another_process_is_resumed_bit_for_bit(found: Any) -> None:
    """Into a model that was only quantized; with Adam and noise of two kinds."""
    fresh = qfunc.quantize(NOISY, batch_norm=qfunc.TrainBatchNorm())(net()).train()
    fresh.load_state_dict(found["half"]["model"])
    optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)
    optimizer.load_state_dict(found["half"]["optimizer"])
    steps(fresh, optimizer, range(2, 4))
    have, want = fresh.state_dict(), found["resumed"]
    assert have.keys() == want.keys()
    assert [k for k in want if not torch.equal(have[k], want[k])] == []


def test_a_sync_batch_norm_alone_is_a_batch_norm() -> None:
    """Without a process group: the same gradients, statistics and files, bit for bit."""
    target = recipes.lsq()(targets.onnxruntime)
    kinds = (nn.BatchNorm2d, nn.SyncBatchNorm)
    one, other = (student(target, net(norm=kind)) for kind in kinds)
    for seed in range(2):
        for model in (one, other):
            loss_of(model, batch(seed)).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    for model in (one, other):
        update_bn([batch(2), batch(3)], model)
    assert other.state_dict().keys() == one.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    files = [qfunc.deploy(target)(m.eval()).files for m in (one, other)]
    assert files[0] == files[1]
    qfunc.freeze_batch_norm(other.train())
    assert torch.equal(other(batch(3)), one(batch(3)))
    late = nn.SyncBatchNorm.convert_sync_batchnorm(one)
    with pytest.raises(CalibrationError) as caught:
        qfunc.freeze_batch_norm(late)
    cure = "Convert the float model, nn.SyncBatchNorm.convert_sync_batchnorm(model), before it is quantized."
    found = "found a SyncBatchNorm, wanted only BatchNorms that quantize created."
    assert str(caught.value) == f"freeze_batch_norm: {found} {cure}"
