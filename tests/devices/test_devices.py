"""Other devices compute the qparams, codes and emulation of the CPU bit for bit; so do the CPU's other kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from tests.devices.laws import Counts, differing, emulated, laws, same_emulation

LAWS = dict(laws())
DEVICES = ["cuda", "mps", "xpu"]


def exists(device: str) -> bool:
    """Return True if this machine has the device."""
    return bool(getattr(torch, device).is_available())


@pytest.mark.filterwarnings("ignore:quantize|calibrate|TF32")
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("device", DEVICES)
def test_a_device_computes_what_the_cpu_computes(device: str, law: Callable[[str], Counts]) -> None:
    if not exists(device):
        pytest.skip(f"this machine has no device {device!r}")
    compared, wrong = law(device)
    assert compared
    assert not wrong


def without_onednn() -> AbstractContextManager[Any]:
    """The CPU's other convolutions and products, which add in another order, as those of another device do."""
    return torch.backends.mkldnn.flags(enabled=False)  # type: ignore[no-any-return]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:quantize|calibrate|TF32")
@pytest.mark.parametrize("name", emulated())
def test_emulation_does_not_depend_on_the_kernels_of_torch(name: str) -> None:
    compared, wrong = same_emulation(*emulated()[name], "cpu", without_onednn)
    assert compared
    assert not wrong


@pytest.mark.filterwarnings("ignore:TF32")
def test_the_other_kernels_do_add_in_another_order() -> None:
    layer, x = torch.nn.Conv2d(96, 8, 5), torch.randn(2, 96, 16, 16)
    with without_onednn():
        other = layer(x)
    if torch.equal(layer(x), other):
        pytest.skip("oneDNN and torch's own kernels add in the same order here")


def test_a_law_counts_what_differs() -> None:
    a, b = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert differing({"a": (a,), "b": b}, {"a": (b,), "b": b}) == (4, 1)
    assert differing(a, b.double()) == (2, 2)
