"""BatchNorms that normalise by their batch in evaluation: no file holds them."""

from __future__ import annotations

from torch import fx, nn

from qfunc.graph.channel_affine import batch_norm_arguments

_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


def normalises_by_batch(network: fx.GraphModule, node: fx.Node) -> bool:
    """Return True for a BatchNorm without running statistics, or one of training by its arguments.

    >>> from qfunc.frontend.capture import capture
    >>> network = capture()(nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)))
    >>> [normalises_by_batch(network, node) for node in network.graph.nodes]
    [False, False, True, False]
    """
    if node.op == "call_module":
        module = network.get_submodule(str(node.target))
        return isinstance(module, _NORMS) and module.running_mean is None
    given = batch_norm_arguments(node)
    return given is not None and (given["training"] is True or given["running_mean"] is None)
