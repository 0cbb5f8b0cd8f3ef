"""Sizes that a chip refuses: quantize says it if it knows them, else calibrate, with the rule, its source and the cure."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import FileFormat, Op, Refuse, RequireSizes, Rule, Span, diff, edit, from_json, to_json
from tests.placement.refusals import U8, chip

HERE = {"because": "guide, 2", "do": "Split it."}
SOFTMAX = RequireSizes(Op("softmax"), "input", elements=Span(1, 16), **HERE)
RULES = Rule(Op(("softmax", "conv", "linear")), input=U8, weight=U8, output=U8)


class Softmax(nn.Module):
    """A softmax over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities."""
        return x.softmax(-1)


class Outer(nn.Module):
    """A part that can be quantized, called with a reshaped tensor."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Return the value of the part."""
        return self.part(x.reshape(2, -1))


def refusals(target, net, x):
    """The messages of quantize with example inputs, with a program, and of calibrate; "" where nothing is refused."""
    program = torch.export.export(net, (x,))
    roads = (
        lambda: qfunc.quantize(target, (x,))(net),
        lambda: qfunc.quantize(target)(program),
        lambda: qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net)),
    )
    return [_message(road) for road in roads]


def _message(road):
    try:
        road()
    except SpecError as e:
        return str(e)
    return ""


def test_a_softmax_that_is_too_long():
    target = chip(SOFTMAX, rules=RULES)
    wanted = (
        "target 'chip', op 'softmax': found sizes [2, 17] of its input 'x', wanted at most 16 elements: guide, 2. Split it."
    )
    assert refusals(target, Softmax(), torch.randn(2, 17)) == [wanted] * 3
    assert refusals(target, Softmax(), torch.randn(200, 16)) == [""] * 3
    assert refusals(edit.pipe(target, edit.skip(edit.op("softmax"))), Softmax(), torch.randn(2, 17)) == [""] * 3


def test_a_part_of_a_model():
    target, net, x = chip(SOFTMAX, rules=RULES), Outer(Softmax()), torch.randn(2, 3, 6)
    wanted = (
        "target 'chip', op 'part.softmax': found sizes [2, 18] of its input 'part.x', wanted at most 16 elements: guide, 2. "
        "Split it."
    )
    assert _message(lambda: qfunc.quantize(target, (x,), submodules="part")(net)) == wanted
    quantized = qfunc.quantize(target, submodules="part")(net)
    assert _message(lambda: qfunc.calibrate([x], progress=False)(quantized)) == wanted
    qfunc.calibrate([x[..., :5]], progress=False)(quantized)


def test_the_sizes_of_constants_are_known_without_inputs():
    wide = RequireSizes(Op("conv"), "weight", axes=((0, Span(1, 4)),), **HERE)
    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 4, 1))
    assert _message(lambda: qfunc.quantize(chip(wide, rules=RULES))(net)) == (
        "target 'chip', op '0': found sizes [5, 3, 1, 1] of its weight '0.weight', wanted at most 4 along axis 0: guide, 2. "
        "Split it."
    )
    qfunc.quantize(chip(wide, rules=RULES))(net[1:])


def test_rank_and_outputs_and_several_reasons():
    flat = RequireSizes(Op("linear"), ("input", "output"), rank=Span(2, 2), **HERE)
    even = RequireSizes(Op("linear"), "output", axes=((-1, Span(1, multiple=4)),), **HERE)
    found = refusals(chip(flat, even, rules=RULES), nn.Linear(4, 6), torch.randn(2, 3, 4))
    reasons = (
        "op 'linear': found sizes [2, 3, 4] of its input 'input', wanted 2 axes: guide, 2. Split it.\n  "
        "op 'linear': found sizes [2, 3, 6] of its output, wanted 2 axes: guide, 2. Split it.\n  "
        "op 'linear': found sizes [2, 3, 6] of its output, wanted a multiple of 4 along axis -1: guide, 2. Split it."
    )
    head = "target 'chip': found 3 violations, for 3 reasons, wanted none. Resolve each:\n  "
    assert found == [f"{head}{reasons}"] * 3


@frozen
class ShortFiles:
    """Files without long softmaxes."""

    format: ClassVar[FileFormat] = FileFormat(legality=(SOFTMAX,))

    def lower(self, program: Any) -> dict[str, bytes]:
        """Return no files."""
        return {}


def test_sizes_that_only_the_files_cannot_hold():
    wanted = (
        "target 'chip', op 'softmax': found sizes [2, 17] of its input 'x', wanted at most 16 elements: guide, 2. Split it. "
        "To simulate it without a file, use attrs.evolve(target, lowering=None)."
    )
    target = evolve(chip(rules=RULES), lowering=ShortFiles())
    assert refusals(target, Softmax(), torch.randn(2, 17)) == [wanted] * 3
    assert refusals(evolve(target, lowering=None), Softmax(), torch.randn(2, 17)) == [""] * 3


def plain(rule: RequireSizes, sizes: list[int]) -> bool:
    """Whether an input of an op may have these sizes, from the sentences of RequireSizes."""
    good, count = True, 1
    for size in sizes[1:]:  # the first axis counts examples
        count *= size
    spans = [(rule.rank, len(sizes)), (rule.elements, count)]
    for axis, span in rule.axes:
        if axis >= 0:
            spans.append((span, sizes[axis] if axis < len(sizes) else 1))
        else:  # no negative axis reaches the first
            spans.append((span, sizes[axis] if -axis < len(sizes) else 1))
    for span, n in spans:
        if span is not None:
            good = good and n >= span.low and (span.high is None or n <= span.high) and n // span.multiple * span.multiple == n
    return good


spans = st.builds(
    lambda low, more, m: Span(low, None if more is None else low + more * m + m, multiple=m),
    st.integers(1, 4), st.none() | st.integers(0, 6), st.sampled_from((1, 1, 2, 3)),
)  # fmt: skip
rules = st.builds(
    lambda rank, elements, axes: RequireSizes(Op("softmax"), "input", rank=rank, elements=elements, axes=axes, **HERE),
    st.none() | spans, spans, st.dictionaries(st.integers(-3, 3), spans, max_size=2).map(lambda d: tuple(d.items())),
)  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@example(RequireSizes(Op("softmax"), "input", axes=((-2, Span(1, 1)),), **HERE), [3, 2])
@given(rules, st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_every_rule_refuses_the_sizes_that_its_sentences_refuse(rule, sizes):
    target, x = chip(rule, rules=RULES), torch.randn(sizes)
    message = _message(lambda: qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Softmax())))
    assert (message == "") == plain(rule, sizes), message


@settings(max_examples=25, deadline=None)
@given(rules)
def test_rules_are_values(rule):
    target = evolve(targets.qdq, legality=(rule,))
    assert from_json(to_json(target)) == target
    assert diff(targets.qdq, target).startswith("legality: only in the second: RequireSizes(")
    assert "sizes of input of softmax" in str(target)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Span(5, 4), "Span.low, high: found (5, 4), wanted low <= high. Widen the span."),
        (lambda: Span(5, 7, multiple=4), "Span.low, high: found (5, 7), wanted a span with a multiple of it. Widen the span."),
        (
            lambda: RequireSizes(Op("conv"), "input", **HERE),
            "RequireSizes.rank, elements, axes: found None, wanted at least one of them. Give a requirement of the chip.",
        ),
        (
            lambda: RequireSizes(Op("conv"), "input", axes=((1, 4),), **HERE),
            "RequireSizes.axes: found (1, 4), wanted (axis, Span). Pair an axis with a Span.",
        ),
        (
            lambda: RequireSizes(Op("conv"), "input", axes=((1, Span(1, 2)), (1, Span(1, 4))), **HERE),
            "RequireSizes.axes: found ((1, Span(high=2)), (1, Span(high=4))), wanted each axis once. Drop the repeated one.",
        ),
        (
            lambda: RequireSizes(Op("conv") & Op("linear"), "input", rank=Span(4, 4), **HERE),
            "RequireSizes.select: found AllOf((Op('conv'), Op('linear'))), wanted a selector that some op can match. "
            "Select ops, e.g. by edit.op.",
        ),
    ],
)
def test_a_rule_that_says_nothing_is_refused(make, message):
    with pytest.raises(SpecError) as e:
        make()
    assert str(e.value) == message


def test_other_rules_are_as_before():
    target = chip(SOFTMAX, Refuse(Op("gelu"), because="guide, 3", do="Use relu."), rules=RULES)
    assert _message(lambda: qfunc.quantize(target, (torch.randn(2, 3),))(nn.GELU())) == (
        "target 'chip', op 'gelu': found the kind 'gelu', wanted an op that it runs: guide, 3. Use relu."
    )
