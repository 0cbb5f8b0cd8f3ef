"""The cases by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from networks.cases import (
    Buffers, Case, Detector, Dropped, Found, One, Pair, Three, Two, activated, between, chosen, compared, conv, floats, grids,
    heads, images, in_place, line, padded, pair, parts, sized, tied, unrolled, words,
)  # fmt: skip


def _attention(**kwargs: object) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(6, 2, batch_first=True, **kwargs)  # type: ignore[arg-type]


def _projected(x, a, b, c, **kwargs):  # type: ignore[no-untyped-def]
    return F.scaled_dot_product_attention(heads(a(x)), heads(b(x)), heads(c(x)), **kwargs).transpose(1, 2).flatten(2)


RECURRENT: dict[str, Case] = {
    "lstm": Case(lambda: One(lambda x, m, h: h(m(x)[0]), nn.LSTM(6, 7, batch_first=True), line(7, 3)), words, 4),
    "lstm, both ways, two levels": Case(
        lambda: One(lambda x, m, h: (h((y := m(x))[0]), *y[1]), nn.LSTM(6, 7, 2, batch_first=True, bidirectional=True,
        dropout=0.2), line(14, 3)), words, 4),
    "lstm, last state": Case(lambda: One(
        lambda x, m, h: h(m(x)[1][0][-1]), nn.LSTM(6, 7, 2, batch_first=True), line(7, 3)), words, 4),
    "lstm, own state": Case(lambda: One(
        lambda x, m, h: h(m(x, (x.new_zeros(1, x.size(0), 7), torch.ones(1, x.size(0), 7)))[0]), nn.LSTM(6, 7,
        batch_first=True, bias=False), line(7, 3)), words, 4),
    "gru": Case(lambda: One(lambda x, m, h: h(m(x)[0]), nn.GRU(6, 7, batch_first=True), line(7, 3)), words, 4),
    "gru, both ways, last state": Case(lambda: One(
        lambda x, m, h: h(m(x)[1].transpose(0, 1).flatten(1)), nn.GRU(6, 7, batch_first=True, bidirectional=True),
        line(14, 3)), words, 4),
    "rnn": Case(lambda: One(lambda x, m, h: h(m(x)[0]), nn.RNN(6, 7, batch_first=True), line(7, 3)), words, 4),
    "rnn, relu": Case(lambda: One(
        lambda x, m, h: h(m(x)[1]), nn.RNN(6, 7, batch_first=True, nonlinearity="relu"), line(7, 3)), words, 4),
    "lstm cell": Case(lambda: One(unrolled, nn.LSTMCell(6, 7), line(7, 3)), words, 20),
    "gru cell": Case(lambda: One(lambda x, m: m(x[:, 0]), nn.GRUCell(6, 7)), words, 6),
    "rnn cell": Case(lambda: One(lambda x, m: m(x[:, 0]), nn.RNNCell(6, 7)), words, 4),
}  # fmt: skip

ATTENTION: dict[str, Case] = {
    "self": Case(lambda: One(lambda x, m: m(x, x, x), _attention(dropout=0.1)), words, 10),
    "self, weights of each head": Case(lambda: One(
        lambda x, m: m(x, x, x, average_attn_weights=False), _attention(bias=False)), words, 9),
    "cross": Case(lambda: Two(lambda x, y, m: m(x, y, y, need_weights=False)[0], _attention()), pair, 12),
    "cross, widths of their own": Case(lambda: Two(
        lambda x, y, m: m(x, y[..., :4], y[..., :4])[0], _attention(kdim=4, vdim=4)), pair, 12),
    "masks": Case(lambda: Two(
        lambda x, p, m: m(x, x, x, key_padding_mask=p, attn_mask=torch.triu(torch.ones(5, 5), 1).bool())[0],
        _attention()), padded, 9),
    "function": Case(lambda: One(_projected, line(), line(), line()), words, 12),
    "function, causal, scaled": Case(lambda: One(
        lambda x, *p: _projected(x, *p, is_causal=True, scale=0.5), line(), line(), line()), words, 11),
    "function, mask": Case(lambda: Two(
        lambda x, p, *q: _projected(x, *q, attn_mask=~p[:, None, None]), line(), line(), line()), padded, 11),
    "grouped queries": Case(lambda: One(
        lambda x, a, b: F.scaled_dot_product_attention(heads(a(x), 4), heads(b(x)), heads(b(x)), enable_gqa=True),
        line(6, 12), line()), words, 9),
    "encoder layer": Case(lambda: nn.TransformerEncoderLayer(6, 2, 9, batch_first=True), words, 18),
    "encoder, norm first": Case(lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(6, 2, 9, batch_first=True, norm_first=True, activation="gelu"), 1, nn.LayerNorm(6)),
        words, 18),
    "decoder layer": Case(lambda: nn.TransformerDecoderLayer(6, 2, 9, batch_first=True), pair, 26),
    "transformer": Case(lambda: nn.Transformer(6, 2, 1, 1, 9, batch_first=True), pair, 40),
}  # fmt: skip

STRUCTURE: dict[str, Case] = {
    "detector": Case(Detector, images, 20),
    "named tuple and none": Case(lambda: One(lambda x, c: Pair(c(x), (None, 3)), conv()), images, 3),
    "dataclass": Case(lambda: One(lambda x, c: Found(c(x), [c(x).relu()]), conv()), images, 3),
    "several inputs": Case(lambda: Three(lambda x, y, z, c: torch.cat([c(x), c(y)], 1) + z, conv()),
                           lambda b: (*images(b), *images(b), torch.randn(b, 8, 8, 10)), 6),
    "an unused input": Case(lambda: Two(lambda x, y, c: (c(x), x), conv()), lambda b: (*images(b), torch.randn(b, 2)), 3),
    "shared": Case(lambda: One(lambda x, a: a(F.relu(a(x))), line()), words, 4),
    "tied": Case(tied, lambda b: (torch.randint(0, 7, (b, 5)),), 3),
    "in place": Case(lambda: One(in_place, line(), line()), words, 6),
    "modules made in the forward": Case(lambda: One(
        lambda x, a, b: nn.Sequential(a, nn.ReLU(), b)[1:](a(x)), conv(), nn.Conv2d(4, 5, 1)), images, 5),
    "buffers": Case(Buffers, images, 4),
    "in training": Case(lambda: Dropped().train(), images, 3),
    "weight norm": Case(lambda: One(lambda x, a: a(x), nn.utils.parametrizations.weight_norm(line())), words, 3),
    "spectral norm": Case(lambda: One(lambda x, a: a(x), nn.utils.spectral_norm(line())), words, 3),
    "computed weights": Case(lambda: One(lambda x, a: F.conv2d(x, a.weight * 2.0, a.bias), conv()), images, 3),
    "channels last": Case(lambda: nn.Sequential(conv(), nn.ReLU()).to(memory_format=torch.channels_last), images, 3),
}  # fmt: skip


def _normed(x, a, axes):  # type: ignore[no-untyped-def]
    mean = (y := a(x)).mean(axes, keepdim=True)
    return (y - mean) / torch.sqrt((y - mean).pow(2).mean(axes, keepdim=True) + 1e-5)


WRITTEN: dict[str, Case] = {
    "curves": between(lambda x: (x * torch.sigmoid(x)) * F.relu6(x + 3) / 6),
    "scaled branch": Case(lambda: One(lambda x, a, b: a(x) + 0.1 * b(x), conv(), conv()), images, 4),
    "norm of places": Case(lambda: One(lambda x, a, b: b(_normed(x, a, (2, 3))), conv(), nn.Conv2d(4, 5, 1)), images, 5),
    "norm of channels": Case(lambda: One(
        lambda x, a, b, w: b(_normed(x, a, 1) * w.weight[:, :, None] + w.bias[:, None, None]), conv(), nn.Conv2d(4, 5, 1),
        nn.Linear(1, 4)), images, 5),
    "unit vectors": Case(lambda: One(lambda x, a: (y := a(x)) / y.norm(dim=-1, keepdim=True), line()), words, 3),
}  # fmt: skip

OPS: dict[str, Case] = {
    "floats": Case(lambda: One(floats, line()), words, 3),
    "activations": Case(lambda: One(activated, conv()), images, 3),
    "chosen": Case(lambda: One(chosen, line()), words, 3),
    "compared": Case(lambda: One(compared, line()), words, 3),
    "sizes": Case(lambda: Two(sized, line()), pair, 3),
    "grids": Case(lambda: One(grids, conv()), images, 3),
    "parts": Case(lambda: One(parts, line()), words, 3),
    "products": Case(lambda: Two(lambda x, y, a: torch.einsum("bij,bkj->bki", a(x), y) + torch.baddbmm(
        y[:, :, :5], y, a(x).transpose(1, 2), alpha=0.5), line()), pair, 6),
    "norms": Case(lambda: nn.Sequential(conv(), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(3),
                                        nn.Conv2d(4, 5, 1), nn.LayerNorm((8, 10)), nn.RMSNorm(10)), images, 5),
    "norms over what a shape says": Case(
        lambda: One(lambda x, a, b: F.layer_norm(b(F.rms_norm(a(x), x.shape[-2:])), x.shape[1:]), conv(),
                    nn.Conv2d(4, 3, 1)), images, 5),
    "unit vectors": Case(lambda: Two(lambda x, y, a: F.normalize(a(x), dim=-1) * F.cosine_similarity(
        x, y[:, :5], dim=-1)[..., None], line()), pair, 3),
    "pads": Case(lambda: nn.Sequential(nn.ReflectionPad2d(1), conv(), nn.ReplicationPad2d((1, 0, 2, 1)), nn.ZeroPad2d(1),
                                       nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular")), images, 5),
    "sampled": Case(lambda: Two(lambda x, g, a: F.grid_sample(a(x), g, align_corners=False), conv()),
                    lambda b: (*images(b), torch.randn(b, 5, 7, 2)), 3),
    "smooth": Case(lambda: One(
        lambda x, a: [F.interpolate(a(x), scale_factor=1.7, mode=m) for m in ("bilinear", "bicubic")], conv()), images),
    "to sizes": between(lambda x: F.interpolate(F.max_pool2d(x, 2), size=(5, 7))),
    "by factors": between(
        lambda x: F.interpolate(F.interpolate(x, scale_factor=2, mode="nearest-exact"), scale_factor=0.5, mode="area")),
    "blocks": between(lambda x: F.channel_shuffle(F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2), 2)),
    "repeats": between(lambda x: x.repeat(1, 1, 2, 1).tile(1, 1, 1, 2).repeat_interleave(2, dim=2)[:, :, [0, 3, 1]].flip(2)),
    "rolls": between(lambda x: torch.roll(x, (1, -2), (2, 3)).movedim(1, -1).movedim(-1, 1).unflatten(2, (2, 4)).flatten(2, 3)),
    "stacks": between(lambda x: torch.stack([x, x], 2).flatten(1, 2), 8),
    "pools": between(
        lambda x: F.adaptive_max_pool2d(x, (4, 5)) + F.adaptive_avg_pool2d(x, (4, 5)) + F.adaptive_max_pool2d(x, 1)),
}  # fmt: skip

CASES: dict[str, Case] = {
    f"{group}: {name}": case
    for group, cases in (
        ("recurrent", RECURRENT),
        ("attention", ATTENTION),
        ("structure", STRUCTURE),
        ("written", WRITTEN),
        ("ops", OPS),
    )
    for name, case in cases.items()
}
"""Every case by group and name."""
