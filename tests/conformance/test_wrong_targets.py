"""Each law of check_target catches the mistakes that it is named for, and passes the right twins and every target of ours."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from qfunc import targets
from qfunc.specs import Target
from qfunc.testing import check_target
from qfunc.testing.laws.arithmetic import ARITHMETIC_LAWS
from qfunc.testing.laws.artifact import ARTIFACT_LAWS
from qfunc.testing.laws.placement import TRIAL_LAWS, transforms_are_pure
from qfunc.testing.laws.target import TARGET_LAWS
from qfunc.testing.small_models import Block, SmallNet
from tests.conformance.running import RUNNER
from tests.conformance.wrong_targets import ARITHMETIC, CHAIN, FORK, GOOD, RUN, WRONG

LAWS = [law.__name__ for law in (*TARGET_LAWS, *TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS, transforms_are_pure)]
LAYERS = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 7, bias=False))
MIXED = SmallNet(
    (
        Block("conv", 3, 4, 3, act="relu", norm=True),
        Block("add", 4, 4, 3, act="relu"),
        Block("max_pool", kernel=3, stride=1),  # NNIE rounds the sizes of others up
        Block("concat", 4, 4),
        Block("avg_pool", kernel=3, stride=1),
        Block("mean"),
        Block("linear", 8, 5),
    )
)


def runner(target):
    """The chip's simulator where the arithmetic is to be held against it; what is on this CPU has its own tests."""
    return RUN.get(target.name)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: re.sub(r"\W+", "-", w.mistake))
def test_a_wrong_target_is_caught_by_the_law_named_for_it(wrong):
    with pytest.raises(AssertionError) as caught:
        check_target(wrong.target, run=runner(wrong.target) if wrong in ARITHMETIC else None, models=[wrong.model])
    assert str(caught.value).startswith(f"check_target({wrong.target.name}), law {wrong.law!r}: ")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:check_target.* found no runtime")
@pytest.mark.parametrize("good", GOOD, ids=lambda t: t.name)
def test_the_right_twins_pass(good):
    check_target(good, run=runner(good), models=[CHAIN])
    check_target(good, models=[FORK])


def test_at_least_twenty_mistakes_and_every_law_that_a_target_can_break():
    # The library itself keeps this one.
    ours = {"unknown_arithmetic_is_refused"}
    assert len(WRONG) >= 20
    assert {w.law for w in WRONG} == set(LAWS) - ours


FIRST = {
    "compressed_tensors": ("NVFP4A16",),
    "executorch_8da4w": (),
    "gguf": ("Q8_0",),
    "onnxruntime_nbits": (),
    "openvino_blocks": (4, 32),
}
"""The first argument of a target for language models."""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:check_target.* found no runtime")
@pytest.mark.parametrize("name", targets.__all__)
def test_every_target_passes(name):
    found = getattr(targets, name)
    if name in FIRST:  # linear layers in blocks, and everything else in float
        check_target(
            found(*FIRST[name]),
            models=[(LAYERS, torch.randn(3, 64, generator=torch.Generator().manual_seed(0)))],
        )
        return
    target = found if isinstance(found, Target) else found(8, 8) if name.endswith("nlp") else found(4, 4)
    x = torch.randn((2, 3, 11, 13), generator=torch.Generator().manual_seed(0))
    check_target(target, run=RUNNER if name == "onnxruntime" else None, models=[(MIXED, x)])
