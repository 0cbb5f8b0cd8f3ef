"""rotate: rotate the residual streams and the heads of a transformer by Hadamard matrices, folded into its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.equalization_graph import capture_for_equalization
from qfunc.corrections.rotation.hadamard import rotation
from qfunc.corrections.rotation.heads import Heads, heads
from qfunc.corrections.rotation.streams import Residual, residuals
from qfunc.errors import SpecError, a_or_an
from qfunc.graph.constants import AttributeNodes, read_attr, replace
from qfunc.ops.node import attribute, kind_of
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.rewrite import rewrite


def rotate(seed: int = 0) -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float transformer that spreads outliers over all channels, without changing its function.

    A residual stream x is a sum of the outputs of embeddings and linear layers, read by linear layers through RMSNorms with
    gains g.  With an orthogonal Q,  |x Q| = |x|, so that

        x' = x Q:   E' = E Q,   W_out' = Q^T W_out,   b_out' = Q^T b_out,   g' = 1,   W_in' = W_in diag(g) Q

    compute the same for embeddings E, the layers W_out that write the stream, and the layers W_in that read it.  The values
    of attention are rotated within each head by one R:  W_v' = R^T W_v  and  W_o' = W_o R  in blocks, if one linear layer
    computes them and only another one reads the result.  Q and R are Hadamard matrices with random signs, divided by the
    root of their order; for a size without such a matrix they have equal blocks on the diagonal.  Tensors are
    multiplied in float64 and rounded once, to their dtype.  Table and head are no longer tied, because the gains of the last
    norm belong to the head alone.

    Rotate first: `compose(qfunc.rotate(), qfunc.quantize(target), qfunc.calibrate(batches), qfunc.gptq(batches))`.

    Args:
        seed: The seed of the signs.
    Returns:
        A function from a module, or from the result of `qfunc.capture`, to a captured model for `quantize`.
    Raises:
        SpecError: a seed that is no integer, or a stream that cannot be rotated, such as one with LayerNorms; the message
            names the op.
        CalibrationError: the model is quantized.
    Source: Ashkboos et al., QuaRot, arXiv:2404.00456, sections 3 and 4, stage 1; random signs follow QuIP#.

    >>> embedding = nn.Sequential(nn.Embedding(8, 4), nn.RMSNorm(4), nn.Linear(4, 8)).eval()
    >>> embedding[0].weight.data[:, 0] *= 100
    >>> rotated, ids = rotate()(embedding), torch.arange(8)
    >>> bool(rotated.get_parameter("0.weight").abs().max() < embedding[0].weight.abs().max())
    True
    >>> torch.testing.assert_close(rotated(ids), embedding(ids), atol=1e-5, rtol=0)
    """
    if type(seed) is not int or seed < 0:
        found = repr(seed) if isinstance(seed, int | float) else a_or_an(type(seed))
        raise SpecError(where="rotate, seed", found=found, wanted="an integer from 0", do="Write qfunc.rotate(seed=0)(model).")

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network = rewrite(capture_for_equalization(model, "rotate"), *NORMS)
            streams, kept = residuals(network)
            if not streams:
                reasons = "; ".join(map(str, kept[:3])) or "no RMSNorm reads a sum of linear layers and embeddings"
                do = "Rotate decoders with RMSNorms before their layers, as Llama or Qwen, or leave this step out."
                raise SpecError(where="rotate", found=reasons, wanted="streams that linear layers write and norms read", do=do)
            layers = _Layers(network)
            for stream in streams:
                _rotate_stream(layers, stream, rotation(stream.size, seed))
            for found in heads(network):
                _rotate_heads(layers, found, rotation(found.size, seed))
            layers.store()
            network.graph.lint()
            network.recompile()
            return network

    return Transform(rotate, {"seed": seed}, transform)


class _Layers:
    """The tensors that change, in float64 until all products are done: by op, (weight, bias)."""

    def __init__(self, model: fx.GraphModule) -> None:
        self.model, self.of = model, dict[fx.Node, tuple[Tensor, Tensor | None]]()

    def __getitem__(self, node: fx.Node) -> tuple[Tensor, Tensor | None]:
        if node not in self.of:
            bias = attribute(node, "bias") if kind_of(node) == "linear" else None
            self.of[node] = self.value(attribute(node, "weight")), None if bias is None else self.value(bias)
        return self.of[node]

    def value(self, node: fx.Node) -> Tensor:
        """Return a constant of the model."""
        return read_attr(self.model, node).detach().double()

    def write(self, node: fx.Node, by: Tensor) -> None:
        """Multiply the outputs of a layer or a table, the vectors along their last axis, by a matrix."""
        weight, bias = self[node]
        weight = weight @ by.to(weight.device) if kind_of(node) == "embedding" else _parts(weight.T, by).T
        self.of[node] = weight, None if bias is None else _parts(bias, by)

    def read(self, node: fx.Node, by: Tensor, gain: Tensor | None = None) -> None:
        """Make a layer read inputs that were divided by a gain and multiplied by an orthogonal matrix."""
        weight, bias = self[node]
        self.of[node] = _parts(weight if gain is None else weight * gain, by), bias

    def store(self) -> None:
        """Round the tensors to their dtypes and store them; readers that have no part in it keep the old ones."""
        nodes = AttributeNodes(self.model.graph)
        for node, (weight, bias) in self.of.items():
            for name, value in (("weight", weight), ("bias", bias)):
                if value is not None:
                    constant = attribute(node, name)
                    old = read_attr(self.model, constant)
                    new = replace(self.model, node, constant, value.to(old.dtype), old.requires_grad, nodes)
                    node.replace_input_with(constant, new)


def _parts(vectors: Tensor, by: Tensor) -> Tensor:
    parts: Tensor = vectors.reshape(*vectors.shape[:-1], -1, len(by)) @ by.to(vectors.device)
    return parts.reshape(vectors.shape)


def _rotate_stream(layers: _Layers, stream: Residual, by: Tensor) -> None:
    for reader in stream.readers:
        layers.read(reader, by, _gain(layers, stream, reader))
    for norm in stream.norms:
        if attribute(norm, "weight") is not None:
            layers.of[norm] = torch.ones_like(layers.value(attribute(norm, "weight"))), None
    for writer in stream.writers:
        layers.write(writer, by)


def _gain(layers: _Layers, stream: Residual, reader: fx.Node) -> Tensor | None:
    node = attribute(reader, "input")
    while node not in stream.norms and node not in stream.values:
        node = node.args[0]  # some of the tokens
    weight = attribute(node, "weight") if node in stream.norms else None
    return None if weight is None else layers.value(weight)


def _rotate_heads(layers: _Layers, found: Heads, by: Tensor) -> None:
    layers.write(found.values, by)
    layers.read(found.output, by)
