"""check_target passes our targets, and finds what is planted in a vendor's."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from qfunc import targets
from qfunc.errors import SpecError
from qfunc.functions import Fixed
from qfunc.specs import Algorithm, Int, Op, Rule, Scheme
from qfunc.testing import Block, SmallNet, check_target
from qfunc.testing.laws.target import TARGET_LAWS
from qfunc.testing.target_check import MODEL_LAWS
from tests.conformance.chip import Chip
from tests.conformance.running import RUNNER
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = evolve(ONNXRUNTIME, runtime=evolve(ONNXRUNTIME.runtime, runner=RUNNER))


@st.composite
def chains(draw):
    """Networks without branches, which the chip runs: every unit on integers."""
    channels, steps = 3, []
    for _ in range(draw(st.integers(1, 2))):
        out, kernel = draw(st.sampled_from((4, 6))), draw(st.sampled_from((1, 3)))
        stride, act = draw(st.sampled_from((1, 2))), draw(st.sampled_from((None, "relu")))
        steps.append(Block("conv", channels, out, kernel, stride, act=act, norm=draw(st.booleans())))
        channels = out
        if draw(st.booleans()):
            steps.append(Block("max_pool", kernel=3, stride=1))
    tail = draw(st.sampled_from(("adaptive", "mean")))
    net = SmallNet((*steps, Block(tail), Block("linear", channels, 5)), draw(st.integers(0, 100)))
    return net, torch.randn((2, 3, 11, 13), generator=torch.Generator().manual_seed(net.seed))


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "examples"), [(TARGET, 8), (targets.tensorrt, 4)], ids=lambda v: getattr(v, "name", ""))
def test_our_targets_pass(target, examples):
    """Every target has a network of its own in test_wrong_targets.py, the runtime thirty in test_random.py."""
    check_target(target, examples=examples)


@pytest.mark.thorough
def test_a_right_chip_passes():
    check_target(TARGET, run=Chip(), models=chains(), examples=10)


def test_an_exempt_law_is_left_out():
    """A target that breaks one law of the value, one of a model, and is checked for the others."""
    net = SmallNet((Block("conv", 3, 4, 3), Block("adaptive"), Block("linear", 4, 5)))
    small = [(net, torch.randn((2, 3, 11, 13), generator=torch.Generator().manual_seed(0)))]
    broken = evolve(TARGET, commuting=TARGET.commuting | Op("softmax"))
    with pytest.raises(AssertionError, match="law 'commuting_ops_commute'"):
        check_target(broken, models=small)
    check_target(broken, models=small, exempt={"commuting_ops_commute": "softmax is listed to see the law"})
    with pytest.raises(AssertionError, match="law 'emulation_matches_the_runtime'"):
        check_target(TARGET, run=Chip("scale"), models=small)
    check_target(TARGET, run=Chip("scale"), models=small, exempt={"emulation_matches_the_runtime": "the chip has a bug"})


def test_exemptions_are_checked():
    with pytest.raises(SpecError) as caught:
        check_target(TARGET, exempt={"round_trip": "a typing error"})
    names = ", ".join(law.__name__ for law in (*TARGET_LAWS, *MODEL_LAWS))
    assert str(caught.value) == (
        f"testing.check_target, exempt: found 'round_trip', wanted a law: {names}. Write 'round_trips'."
    )
    with pytest.raises(AssertionError) as held:
        check_target(TARGET, exempt={"round_trips": "none"})
    assert str(held.value) == ("check_target(onnxruntime), law 'round_trips': it is exempt, and holds. Remove it from exempt.")


UNSHRUNK = settings(max_examples=15, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("bug", "chosen"), [("ties", UNSHRUNK), ("zero point", UNSHRUNK), ("scale", None)])
def test_a_bug_in_a_chip_is_found_and_shown(bug, chosen):
    with pytest.raises(AssertionError) as caught:
        check_target(TARGET, run=Chip(bug), models=chains(), settings=chosen)
    message = str(caught.value)
    assert "emulation and runtime disagree" in message
    assert "The model: SmallNet((" in message
    if chosen is None:  # shrunk: a convolution, the global average with the planted bug, a linear layer
        assert message.count("Block(") <= 4


def test_models_may_be_given():
    net, x = SmallNet((Block("conv", 3, 4, 3), Block("mean"), Block("linear", 4, 5))), torch.ones(2, 3, 7, 5)
    check_target(TARGET, models=[(net, x)])


def test_a_rule_that_no_kernel_takes_is_found():
    odd = evolve(TARGET, rules=(Rule(Op("conv"), input=Scheme(Int(16))), *TARGET.rules))
    with pytest.raises(AssertionError, match="on the input of conv, and no kernel of conv accepts it"):
        check_target(odd, models=[])


@frozen
class Shifted:
    """A function whose codes for deployment are not those of the simulation."""

    def init(self, qparams, x, scheme):
        return qparams

    def apply(self, params, x, scheme):
        return Fixed().apply(params, x, scheme)

    def export(self, params, x, scheme):
        codes, qparams = Fixed().export(params, x, scheme)
        return (codes + 1).clamp(scheme.format.qmin, scheme.format.qmax), qparams


def test_codes_that_are_not_those_of_the_simulation_are_found():
    wrong = evolve(TARGET, weight=Algorithm(TARGET.weight.estimator, Shifted()))
    net = SmallNet((Block("conv", 3, 4, 3), Block("mean"), Block("linear", 4, 5)))
    with pytest.raises(AssertionError, match="law 'exported_codes_match_the_simulation'"):
        check_target(wrong, models=[(net, torch.randn(2, 3, 7, 5))])
