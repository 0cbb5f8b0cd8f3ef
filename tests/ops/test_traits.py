"""Each record's example has the traits that the record claims, and no others of those that an example can show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from qfunc.graph.selectors import Context
from qfunc.graph.selectors import non_negative as non_negative_node
from qfunc.ops.definition import Op, Trait
from qfunc.ops.opset import BY_NAME, OPS, kinds
from qfunc.specs import OpKind
from tests.each import failures

# Traits that an example appears to show or to lack.
EXCEPTIONS: dict[tuple[str, Trait], str] = {
    ("cast", Trait.KEEPS_SIGN): "a cast to int8 wraps",
    ("cast", Trait.HOMOGENEOUS): "a cast to integers rounds",
    ("cast", Trait.NEVER_BOOLEAN): "there are casts to booleans",
    ("full", Trait.ELEMENTWISE): "it reads no entry",
    ("full", Trait.INTEGER_IF_INPUTS): "its type is an argument",
    ("left_out", Trait.MOVES_VALUES): "it inverts booleans",
    ("left_out", Trait.HOMOGENEOUS): "it inverts booleans",
    ("left_out", Trait.VIEW): "it inverts booleans",
    ("cast", Trait.MOVES_VALUES): "a cast to integers rounds",
    ("nan_to_num", Trait.KEEPS_SIGN): "the numbers for NaN and infinity may be negative",
    ("nan_to_num", Trait.HOMOGENEOUS): "the numbers for NaN and infinity stay",
    ("nan_to_num", Trait.MOVES_VALUES): "the numbers for NaN and infinity are new",
}
SHAPE = (2, 3, 5, 6)
ROWS = {f"{i}: {op.kind}": op for i, op in enumerate(OPS)}


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a result."""
    return [value] if isinstance(value, Tensor) else [t for entry in value for t in tensors(entry)]


def draws() -> list[Tensor]:
    """Inputs of several ranges: around 0, wide, below 0 alone."""
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(SHAPE, generator=generator) + shift for scale, shift in ((0.3, 0.0), (2.0, 0.0), (1.0, -4.0))]


def never_negative(op: Op, inputs: list[Tensor]) -> bool:
    return all(not (t.double() < 0).any() for x in inputs for t in tensors(op.example(x)))


def close(found: Any, wanted: list[Tensor]) -> bool:
    pairs = zip(tensors(found), wanted, strict=True)
    return all(a.shape == b.shape and torch.allclose(a.double(), b.double(), 1e-4, 1e-5, equal_nan=True) for a, b in pairs)


def non_negative(op: Op) -> bool:
    return never_negative(op, draws())


def keeps_sign(op: Op) -> bool:
    return never_negative(op, [x.abs() for x in draws()])


def integer_result(op: Op) -> bool:
    return not any(t.is_floating_point() for x in draws() for t in tensors(op.example(x)))


def moves_values(op: Op) -> bool:
    def mapped(x: Tensor) -> Tensor:  # decreasing, and not 0 at 0
        return 0.25 - x**3

    if integer_result(op):
        return False
    return all(close(op.example(mapped(x)), [mapped(t) for t in tensors(op.example(x))]) for x in draws())


def homogeneous(op: Op) -> bool:
    if integer_result(op):
        return False
    return all(close(op.example(s * x), [s * t for t in tensors(op.example(x))]) for x in draws() for s in (0.5, 2.0))


def elementwise(op: Op) -> bool:
    # Binary examples join the two entries along axis 0: the same permutation of the others must be seen behind the op.
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))

    def permuted(x: Tensor) -> Tensor:
        return x.flatten(1)[:, order].reshape(SHAPE)

    return all(
        t.shape == SHAPE and close(op.example(permuted(x)), [permuted(t)]) for x in draws() for t in tensors(op.example(x))[:1]
    ) and not any(len(tensors(op.example(x))) > 1 for x in draws())


def integer_if_inputs(op: Op) -> bool:
    if integer_result(op):
        return Trait.INTEGER_IF_INPUTS in op.traits
    x = (10 * draws()[1]).long()
    try:
        return not any(t.is_floating_point() for t in tensors(op.example(torch.where(x == 0, 7, x))))
    except (RuntimeError, TypeError):  # PyTorch has none for integers
        return False


def never_boolean(op: Op) -> bool:
    try:
        return not any(t.dtype == torch.bool for x in draws() for t in tensors(op.example(x > 0)))
    except (RuntimeError, TypeError):
        return True


def view(op: Op) -> bool:
    x = draws()[0]
    return all(t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in tensors(op.example(x)))


def commutative(op: Op) -> bool:
    x = draws()[1][0, 0, :, :5]
    return op.parameters == ("input", "other") and close(op.call(x, 0.3 + x.flip(0)), [op.call(0.3 + x.flip(0), x)])


LAWS: dict[Trait, Callable[[Op], bool]] = {
    Trait.NON_NEGATIVE: non_negative,
    Trait.KEEPS_SIGN: keeps_sign,
    Trait.MOVES_VALUES: moves_values,
    Trait.ELEMENTWISE: elementwise,
    Trait.HOMOGENEOUS: homogeneous,
    Trait.INTEGER_RESULT: integer_result,
    Trait.INTEGER_IF_INPUTS: integer_if_inputs,
    Trait.NEVER_BOOLEAN: never_boolean,
    Trait.VIEW: view,
    Trait.COMMUTATIVE: commutative,
}


@pytest.mark.thorough
def test_a_record_has_the_traits_of_its_example() -> None:
    cases = [(r, t) for r, op in ROWS.items() for t in LAWS if (op.kind, t) not in EXCEPTIONS]
    assert failures(has_the_trait_of_its_example, cases) == {}


def has_the_trait_of_its_example(row: str, law: Trait) -> None:
    op = ROWS[row]
    assert op.example is not None
    claimed, shown = law in op.traits, LAWS[law](op)
    assert claimed == shown, f"{op.kind} ({op.call.__name__}): the record and its example differ in {law.name}"


def test_a_record_counts_its_results() -> None:
    assert failures(counts_its_results, ROWS) == {}


def counts_its_results(row: str) -> None:
    op = ROWS[row]
    found = op.example(draws()[0])
    if isinstance(found, list):  # such as chunks: as many as an argument says
        assert op.results is None
    else:
        assert op.results in (None, len(found) if isinstance(found, tuple) else 1)


def test_traits_imply_each_other() -> None:
    for op in OPS:
        traits = op.traits
        assert Trait.KEEPS_SIGN in traits or not traits & Trait.NON_NEGATIVE, op
        assert Trait.HOMOGENEOUS in traits or not traits & Trait.SCALES_WITH_CHANNELS, op
        assert Trait.MOVES_VALUES in traits or not traits & Trait.VIEW, op
        assert (op.neutral is not None) == bool(traits & Trait.ARITHMETIC), op


def test_a_neutral_operand_changes_nothing() -> None:
    x = draws()[0]
    found = [op for op in OPS if op.neutral is not None]
    assert len(found) == 4
    assert all(torch.equal(op.call(x, op.neutral), x) for op in found)


@pytest.mark.parametrize("row", [r for r, op in ROWS.items() if Trait.SCALES_WITH_CHANNELS in op.traits])
def test_ops_that_scale_with_channels_keep_constants_or_not(row: str) -> None:
    op, x = ROWS[row], torch.full(SHAPE, 2.5)
    assert op.example is not None
    shown = all(bool((t == 2.5).all()) for t in tensors(op.example(x)))
    assert (Trait.KEEPS_CONSTANTS in op.traits) == shown


def test_each_name_spells_one_record() -> None:
    assert sum(len(op.names) for op in OPS) == len(BY_NAME)
    assert len({op.call for op in OPS}) == len(OPS)


def test_kinds_by_meaning() -> None:
    """What no example shows is listed once more."""
    assert kinds(Trait.WEIGHTED) == {"conv", "conv_transpose", "linear"}
    assert kinds(Trait.RECURRENT) == {"lstm", "gru", "rnn"}
    assert kinds(Trait.CLAMPS) == {"relu", "clip"}
    assert kinds(Trait.CREATES) == {"arange", "full"}
    assert kinds(Trait.NORM) == {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
    assert kinds(Trait.KEEPS_LOW) == {"add", "cast", "clip", "mask", "maximum"}
    assert kinds(Trait.AVERAGES) == {"avg_pool", "adaptive_avg_pool", "global_avg_pool", "mean"}


def smooth(x: Tensor) -> Tensor:
    """An op of a user's."""
    return torch.nn.functional.softplus(x)


def test_a_users_op_has_the_traits_of_the_kind_that_it_behaves_like() -> None:
    graph = fx.Graph()
    node = graph.call_function(smooth, (graph.placeholder("x"),))
    graph.output(node)
    model = fx.GraphModule(torch.nn.Module(), graph)
    spelled = f"{smooth.__module__}.smooth"
    assert non_negative_node(node, Context(model, (OpKind("smooth", spelled, behaves_like="softplus"),)))
    assert not non_negative_node(
        node, Context(model, (OpKind("smooth", spelled, onnx='<domain: "mine"> Smooth (x) => (y) { y = Softplus(x) }'),))
    )
    assert not non_negative_node(node, Context(model))
