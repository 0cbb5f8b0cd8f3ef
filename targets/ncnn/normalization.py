"""Norms as ncnn's layers, in float32."""

from __future__ import annotations

import math

import numpy as np

from qfunc.targets.ncnn.builder import floats
from qfunc.targets.ncnn.linear import reshaped_like
from qfunc.targets.ncnn.writer import OpContext


def layer_norm(step: OpContext) -> None:
    """LayerNorm of rows, into which the blob is reshaped: ncnn normalizes other axes in blobs of other ranks.

    Raises:
        DeployError: weights that are computed, or statistics of the batch.
    """
    x, full = step.input(), len(step.source.shape(step.node.input[0], step.node.name))
    rank = -int(step.attribute("axis", -1)) % full or full
    if rank > len(x.shape):
        raise step.refuse("statistics of the batch", "statistics of each example", "Normalize the axes after the batch.")
    count = math.prod(x.shape[len(x.shape) - rank :])
    rows = step.reshaped(x, (math.prod(x.shape) // count, count), "rows")
    weights = _affine(step, count)
    parameters = {0: count, 1: float(step.attribute("epsilon", 1e-5)), 2: 1}
    blob = step.file.layer("LayerNorm", [rows], step.output, rows.shape, parameters, weights=weights)
    step.keep(reshaped_like(step, blob))


def group_norm(step: OpContext) -> None:
    """GroupNorm of the channels of an image.

    Raises:
        DeployError: weights that are computed.
    """
    _by_channels(step, int(step.attribute("num_groups")))


def instance_norm(step: OpContext) -> None:
    """GroupNorm with a group for each channel.

    Raises:
        DeployError: weights that are computed.
    """
    _by_channels(step, step.input().shape[0])


def _by_channels(step: OpContext, groups: int) -> None:
    x = step.input()
    channels = x.shape[0]
    image = step.reshaped(x, (channels, 1, math.prod(x.shape[1:])), "image")
    parameters = {0: groups, 1: channels, 2: float(step.attribute("epsilon", 1e-5)), 3: 1}
    blob = step.file.layer("GroupNorm", [image], step.output, image.shape, parameters, weights=_affine(step, channels))
    step.keep(reshaped_like(step, blob))


def _affine(step: OpContext, count: int) -> list[bytes]:
    constants = [step.constant_input(1), step.constant_input(2)]
    given = [name != "" for name in [*step.node.input[1:3], "", ""][:2]]
    if any(g and h is None for g, h in zip(given, constants, strict=True)):
        raise step.refuse("weights that are computed", "constants", "Compute them once, outside the model.")
    fills = (np.ones(count), np.zeros(count))
    return [floats(fill if h is None else h.real.ravel()) for h, fill in zip(constants, fills, strict=True)]
