"""What the backward computes again: the bits that it would have kept, in eager mode and compiled."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import qfunc
from qfunc import functions, recipes, targets
from qfunc.errors import CalibrationError
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import edit
from tests.functions.test_with_gradient import held, lsq
from tests.onnxruntime_target import ONNXRUNTIME
from tests.training.nets import batch, loss_of, student

STOCHASTIC, OWN = functions.Stochastic(), functions.with_gradient(held, lsq, ("scale",))
FOUR = targets.academic(4, 4)
CASES: dict[str, Any] = {
    "fixed": ONNXRUNTIME,
    "lsq": recipes.lsq()(targets.tensorrt),
    "lsq, biases": recipes.lsq()(ONNXRUNTIME),
    "lsq_plus": recipes.lsq_plus()(FOUR),
    "pact": recipes.pact(0.3)(FOUR),
    "dorefa": recipes.dorefa()(FOUR),
    "dsq": recipes.dsq()(FOUR),
    "tqt": recipes.tqt()(targets.vitis),
    "qdrop": edit.activations(function=functions.QDrop(functions.Lsq(batch_axis=0)))(targets.tensorrt),
    "stochastic": edit.pipe(targets.tensorrt, *(e(function=STOCHASTIC) for e in (edit.weights, edit.activations))),
    "nnie": targets.nnie,
    "adaround": edit.weights(function=functions.AdaRound(functions.Lsq()))(targets.tensorrt),
    "with_gradient": edit.pipe(targets.tensorrt, *(e(function=OWN) for e in (edit.weights, edit.activations))),
}
LSQ = CASES["lsq"]

Context = Callable[[], AbstractContextManager[Any]]


def alive(model: nn.Module, context: Context) -> list[str]:
    """The sites whose values a forward of a copy of the model left alive."""
    values: list[tuple[str, ref[Tensor]]] = []
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, FakeQuantize):
            module.register_forward_hook(lambda m, given, value: values.append((m.site.name, ref(value))))
    with context():
        loss = loss_of(model, batch(3))
        return [name for name, value in values if value() is not None and loss.requires_grad]


def stepped(model: nn.Module, context: Context, run: Callable[[nn.Module, Tensor], Tensor] = loss_of) -> nn.Module:
    """The model after a step of two batches, whose backward comes after both."""
    with context():
        losses = [run(model, batch(seed)) for seed in (1, 2)]
    torch.stack(losses).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    return model


def same(one: nn.Module, other: nn.Module) -> None:
    """Parameters, gradients and buffers, bit for bit."""
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.grad is not None, name
        assert torch.equal(a.grad, b.grad), name  # type: ignore[arg-type]
    have, want = one.state_dict(), other.state_dict()
    assert [k for k in want if not torch.equal(have[k], want[k])] == []


EVERY = ["x", "left.weight", "right.weight", "mean", "head.weight"]
"""What the convs and the linear layer of the network keep."""


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_what_was_kept(name: str) -> None:
    """Every function of the field, noise and biases included; nothing quantized stays whose x autograd keeps anyway."""
    one = student(CASES[name])
    other = copy.deepcopy(one)
    assert alive(one, lambda: saved_tensors_hooks(lambda t: t, lambda t: t)) == EVERY
    # A function whose scale does not train keeps a mask, and the image and the mean are kept by no op; recipes leave the
    # image to the target, whose scale trains on vitis alone.
    fixed = ["x", "mean"] if name in ("fixed", "dorefa", "stochastic", "nnie", "adaround") else ["x"]
    rest = [] if name in ("tqt", "qdrop", "with_gradient") else fixed
    assert alive(one, qfunc.recompute_quantized) == rest
    for _ in range(2):
        one.zero_grad(), other.zero_grad()
        same(stepped(one, qfunc.recompute_quantized), stepped(other, nullcontext))


def checkpointed(model: nn.Module, x: Tensor) -> Tensor:
    context_fn = functools.partial(qfunc.checkpoint_contexts, model)
    return checkpoint(loss_of, model, x, use_reentrant=False, context_fn=context_fn)  # type: ignore[no-any-return]


def in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, x)


def with_hooks(model: nn.Module, x: Tensor) -> Tensor:
    with save_on_cpu():
        return loss_of(model, x)


def twice(model: nn.Module, x: Tensor) -> Tensor:
    with qfunc.recompute_quantized():
        return loss_of(model, x)


def backward_within(model: nn.Module, x: Tensor) -> Tensor:
    loss = loss_of(model, x)
    loss.backward(retain_graph=True)
    return loss


RUNS = [checkpointed, in_bfloat16, with_hooks, twice, backward_within]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_beside_other_tools(run: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Within it gradients are checkpointed, computed in bfloat16, kept by others' hooks, and gone back twice."""
    one = student(CASES["qdrop"])
    other = copy.deepcopy(one)
    same(stepped(one, qfunc.recompute_quantized, run), stepped(other, nullcontext, run))


class Views(nn.Module):
    """Quantized tensors that are read as views, by two ops, and changed in place after one has kept them."""

    def __init__(self, quantized: Any) -> None:
        super().__init__()
        self.quantized = quantized  # FakeQuantize of an activation
        self.one, self.other = nn.Parameter(torch.randn(42, 5)), nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.quantized(x), self.quantized(x * 0.5)
        third = self.quantized(x.transpose(1, 3))
        last = second[:, 1:, :, 3].mul_(2) * self.quantized(x)[:, 1:, :, 3]
        doubled = self.quantized(x).mul_(2)
        total = (first.reshape(-1, 42) @ self.one).sum() + (first @ self.other).square().sum() + last.sum()
        return total + (third.square() * third).sum() + (second * second).sum() + (doubled * doubled).sum()


def test_views_and_changes_in_place() -> None:
    sites = student(LSQ).get_submodule("quantizers.x.output")
    one = Views(sites)
    other = copy.deepcopy(one)
    results = []
    for model, context in ((one, qfunc.recompute_quantized), (other, nullcontext)):
        x = batch(4).requires_grad_()
        with context():
            value = model(x)
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), model.one, retain_graph=True)
        value.backward()
        results.append((value, first, second, x.grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    same(one, other)


def test_what_is_changed_meanwhile_is_told() -> None:
    """A scale after an optimizer's step; the weights, once the scale is what it was."""
    model = student(LSQ)
    with qfunc.recompute_quantized():
        loss = loss_of(model, batch(1))
    with torch.no_grad():
        model.get_parameter("quantizers.head.weight.scale").mul_(2)
    wanted = (
        "recompute_quantized: found a tensor that was changed in place between forward and backward, wanted an "
        "unchanged tensor, from which the quantized one is recomputed. Change it after the backward, or remove "
        "recompute_quantized."
    )
    with pytest.raises(CalibrationError) as caught:
        loss.backward()
    assert str(caught.value) == wanted


def test_it_ends_with_its_body() -> None:
    """Also by an exception; outside of it autograd keeps what it always kept."""
    model = student(LSQ)
    with pytest.raises(RuntimeError, match="to have 3 channels"), qfunc.recompute_quantized():
        loss_of(model, batch(1)[:, :2])
    assert alive(model, lambda: saved_tensors_hooks(lambda t: t, lambda t: t)) == EVERY
    with qfunc.recompute_quantized(), torch.no_grad():
        assert torch.equal(model.eval()(batch(1)), model(batch(1)))


def test_functional_transforms_refuse_it_and_vmap_does_not_mind() -> None:
    """As with all hooks of saved tensors."""
    model = student(LSQ).eval()
    weights = dict(model.named_parameters())

    def loss(weights: Any) -> Tensor:
        return loss_of(lambda x: torch.func.functional_call(model, weights, (x,)), batch(1))  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="saved tensor hooks"), qfunc.recompute_quantized():
        torch.func.grad(loss)(weights)
    parts, found = batch(1).reshape(4, 2, 3, 7, 6), []
    for context in (qfunc.recompute_quantized, nullcontext):
        model.zero_grad()
        with context():
            torch.vmap(model)(parts).square().sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters()})
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def tiny(target: Any) -> nn.Module:
    """What compiles in seconds: one op between two quantized tensors."""
    torch.manual_seed(3)
    return qfunc.calibrate([torch.randn(6, 5)])(qfunc.quantize(target)(nn.Linear(5, 4))).train()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_backwards_quantize_again() -> None:
    """Neither a quantized weight nor a quantized input is kept, only x; for every number of examples, to the same bits."""
    model = tiny(LSQ)
    other, kept = copy.deepcopy(model), list[Tensor]()
    own = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    run = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (6, 4):
        with qfunc.recompute_quantized(), saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
            value = run(x := torch.randn(n, 5))
        assert [tuple(t.shape) for t in kept if t.numel() > 1 and t.data_ptr() not in own] == [(n, 5)]
        kept.clear()
        value.square().sum().backward()
        other(x).square().sum().backward()
    same(model, other)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("case", ["fixed", "lsq", "pact", "dsq", "qdrop", "with_gradient"])
def test_compiled_graphs_have_functions_of_pytorch_only(case: str) -> None:
    """PyTorch caches no graph with others; each quantizer is one checkpoint."""
    counts = Counter[str]()

    def backend(graph: Any, _: Any) -> Any:
        for module in (m for m in graph.modules() if isinstance(m, fx.GraphModule)):
            counts.update(str(n.target) for n in module.graph.nodes if getattr(n.target, "__module__", "").startswith("qfunc"))
            counts.update(str(n.target) for n in module.graph.nodes if str(n.target) == "tag_activation_checkpoint")
        return graph.forward

    torch.compile(tiny(CASES[case]), fullgraph=True, backend=backend)(torch.randn(6, 5))
    assert counts == {"tag_activation_checkpoint": sum(isinstance(m, FakeQuantize) for m in tiny(CASES[case]).modules())}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_checkpoints_and_compilers() -> None:
    """A compiled block within a checkpoint has the noise of its forward; within what is compiled contexts are refused."""
    one = tiny(CASES["qdrop"])
    other = copy.deepcopy(one)
    for model, run in ((one, torch.compile(one, backend="aot_eager")), (other, other)):
        context_fn = functools.partial(qfunc.checkpoint_contexts, model)
        for n in (1, 2):
            checkpoint(run, torch.full((6, 5), n / 3), use_reentrant=False, context_fn=context_fn).square().sum().backward()
    same(one, other)
    linear = nn.Linear(5, 4)
    context_fn = functools.partial(qfunc.checkpoint_contexts, linear)
    whole = torch.compile(lambda x: checkpoint(linear, x, use_reentrant=False, context_fn=context_fn), backend="aot_eager")
    with pytest.raises(Exception, match=r"found a checkpoint inside torch.compile, which runs no contexts, wanted"):
        whole(torch.ones(6, 5))
