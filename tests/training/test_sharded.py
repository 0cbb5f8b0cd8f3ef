"""Training with FSDP in four processes is training in one; a distributed checkpoint resumes it bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qfunc
from tests.processes import start_processes
from tests.training.nets import batch, net
from tests.training.ranks import NOISY, made
from tests.training.sharded import CASES, PROCESSES, trained, work

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the first of the processes found."""
    folder = tmp_path_factory.mktemp("sharded")
    start_processes(work, (str(folder),), PROCESSES)
    return torch.load(folder / "found.pt", weights_only=False)


@pytest.mark.parametrize("name", [*CASES, "compiled"])
def test_four_processes_train_as_one(name: str, found: Any) -> None:
    """Scales of one element too, which three of the processes have no part of."""
    want = trained(made("lsq folded" if name == "compiled" else name, sync=False), slice(0, 8), 1)
    assert found[name]["gradients"].keys() == want["gradients"].keys()
    for key, gradient in want["gradients"].items():
        # Sums of at most 2^9 products in float64 in another order; scales keep 24 bits, of each part and of the whole,
        # and the scales that follow a frozen norm hand its gamma such a gradient.
        exact = gradient.dtype is torch.float64 and not key.startswith("norm")
        atol = (1e-10 if exact else 2.0**-20) * float(gradient.abs().max()) + 1e-14
        torch.testing.assert_close(found[name]["gradients"][key], gradient, rtol=0, atol=atol, msg=key)
    for key, value in want["state"].items():
        # After a step scales differ by 2^-23 of themselves, and with them all else.
        torch.testing.assert_close(found[name]["state"][key], value, rtol=1e-5, atol=1e-6, msg=key)


def test_a_distributed_checkpoint_is_resumed_bit_for_bit(found: Any) -> None:
    """Into a model that was only quantized; with Adam and noise of two kinds."""
    have, want = found["resumed"]["gradients"]
    for a, b in zip(have, want, strict=True):
        assert a.keys() == b.keys()
        assert [k for k in b if not torch.equal(a[k], b[k])] == []


def test_the_full_state_is_that_of_a_model_in_one_process(found: Any) -> None:
    """It loads into one that was only quantized, which then computes the same bits."""
    plain = qfunc.quantize(NOISY, batch_norm=qfunc.TrainBatchNorm())(net())
    plain.load_state_dict(found["resumed"]["state"])
    before, halved, again = found["resumed"]["evaluations"]
    with torch.no_grad():
        assert torch.equal(plain.eval()(batch(5)), before)
    assert torch.equal(before, again)
    assert not torch.equal(before, halved), "an evaluation used the weights of the state before"


def test_scales_in_their_own_group_keep_their_bits(found: Any) -> None:
    assert found["types"] == {"weight": torch.bfloat16, "scale": torch.float32}


def test_what_takes_no_sharded_model(found: Any) -> None:
    load = "Load its full state_dict, of torch.distributed.checkpoint.state_dict.get_model_state_dict, into a quantized model."
    emulate, explain, capture = found["refused"]
    sharded = "found a model that fully_shard sharded, wanted"
    assert emulate == f"emulate: {sharded} a calibrated model with whole tensors. {load}"
    assert explain == f"explain: {sharded} a quantized model with whole tensors. {load}"
    before = "Pass the module before it is sharded, with the full state_dict loaded."
    assert capture == f"capture: {sharded} unsharded tensors. {before}"
