"""Programs drawn by seed: families of networks, unusual weights and ranges, options of the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count

from qfunc.testing.grammar.attention import TOKEN_BLOCKS, encoder_block, token_norm
from qfunc.testing.grammar.convolutions import IMAGE_BLOCKS, activation, conv, norm, stage
from qfunc.testing.grammar.draft import BATCH, Draft, MisfitError, replay
from qfunc.testing.grammar.ends import apply_blocks, head, image_input, input_range
from qfunc.testing.grammar.naming import rename_parts
from qfunc.testing.grammar.program import Program
from qfunc.testing.grammar.pruning import prune
from qfunc.testing.grammar.rare import RARE, with_zeros
from qfunc.testing.grammar.rearrangements import SINGLE_OPS, size_formula
from qfunc.testing.grammar.windows import WINDOW_BLOCKS

EDITS = (
    "edit.weights(granularity=specs.PerTensor())", "edit.weights(bits=4)", "edit.weights(bits=7)", "edit.weights(signed=False)",
    "edit.activations(symmetric=True)", "edit.activations(bits=4)", "edit.activations(signed=True)",
    "edit.weights(symmetric=False)", 'edit.skip(edit.op("softmax"))', 'edit.skip(edit.op("conv"))',
    "edit.activations(power_of_two=True)", "edit.weights(power_of_two=True)",
)  # fmt: skip
"""Edits of a target, as code."""


def classifier(d: Draft) -> tuple[str, ...]:
    """A convolutional network with a classifier."""
    x = apply_blocks(d, stage(d, image_input(d)), IMAGE_BLOCKS, 1, 4)
    x = apply_blocks(d, x, WINDOW_BLOCKS, 0, 2)
    return d.outcome(x) if d.chance(0.2) else head(d, x)


def windows(d: Draft) -> tuple[str, ...]:
    """Pools, pads and resizes between convolutions, or alone."""
    x = image_input(d)
    x = conv(d, x) if d.chance(0.6) else x
    x = apply_blocks(d, x, (*WINDOW_BLOCKS, *WINDOW_BLOCKS, *SINGLE_OPS), 1, 4)
    if len(d.shape(x)) == 4 and d.chance(0.5):
        x = d.attempt(conv, x)
    return head(d, x) if len(d.shape(x)) == 4 and d.chance(0.4) else d.outcome(x)


def encoder(d: Draft) -> tuple[str, ...]:
    """A network of an image as patches (ViT, Swin), with or without a class token."""
    x, width, patch = image_input(d), d.pick(8, 12, 16), d.pick(2, 4)
    x = d.let(f"{d.layer('patches', f'nn.Conv2d({d.shape(x)[1]}, {width}, {patch}, {patch})')}({x})")
    x = d.let(d.pick(f"{x}.flatten(2).transpose(1, 2)", f"{x}.flatten(2).permute(0, 2, 1)",
                     f"{x}.reshape({x}.shape[0], {x}.shape[1], -1).transpose(1, 2)"))  # fmt: skip
    token = d.chance(0.5)
    if token:
        cls = d.layer("token", f"nn.Parameter(torch.randn(1, 1, {width}))")
        more = d.pick(
            f"{cls}.expand({x}.shape[0], -1, -1)", f"{cls}.expand({x}.size(0), -1, -1)", f"{cls}.repeat({x}.shape[0], 1, 1)"
        )
        x = d.let(f"torch.cat([{more}, {x}], dim=1)" if d.chance(0.7) else f"torch.cat(({more}, {x}), 1)")
    if d.chance(0.7):
        x = d.let(f"{x} + {d.layer('places', f'nn.Parameter(torch.randn(1, {d.shape(x)[1]}, {width}) * 0.02)')}")
    x = apply_blocks(d, x, TOKEN_BLOCKS, 1, 2)
    x = token_norm(d, x) if d.chance(0.7) else x
    x = d.let(f"{x}[:, 0]" if token or d.chance(0.2) else f"{x}.mean(1)" if d.chance(0.8) else f"{x}.mean(dim=1, keepdim=True)")
    return (d.let(f"{d.layer('head', f'nn.Linear({d.shape(x)[-1]}, 5)')}({x})"),)


def tokens(d: Draft) -> tuple[str, ...]:
    """A network of token vectors, or of ids through an embedding (T5, BERT)."""
    width = d.pick(8, 12, 16)
    if d.chance(0.3):
        x = d.input(f"torch.randint(0, 20, (n, {d.pick(6, 9)}))")
        x = d.let(f"{d.layer('embed', f'nn.Embedding(20, {width})')}({x})")
    else:
        x = d.input(f"torch.randn(n, {d.pick(4, 9, 16)}, {width}){input_range(d)}")
    x = apply_blocks(d, x, TOKEN_BLOCKS, 1, 3)
    return (d.attempt(token_norm, x),) if d.chance(0.5) else d.outcome(x)


def single_ops(d: Draft) -> tuple[str, ...]:
    """Single ops on any tensor, around a layer or none."""
    x = d.input(f"torch.randn(n, {d.pick('6', '4, 8', '3, 6, 8', '8, 5, 5', '1, 7, 9')}){input_range(d)}")
    x = apply_blocks(d, x, SINGLE_OPS, 0, 2)
    x = d.let(f"{d.layer('fc', f'nn.Linear({d.shape(x)[-1]}, {d.pick(4, 8)})')}({x})") if d.chance(0.6) else x
    return d.outcome(apply_blocks(d, x, SINGLE_OPS, 1, 3))


def mixture(d: Draft) -> tuple[str, ...]:
    """A convolution between blocks of all kinds."""
    x = d.attempt(conv, image_input(d))
    for _ in range(d.pick(2, 3, 4, 5)):
        x = d.attempt(d.pick(*((*IMAGE_BLOCKS, *WINDOW_BLOCKS) if len(d.shape(x)) == 4 else ()), *SINGLE_OPS), x)
    if len(d.shape(x)) == 3 and d.chance(0.5):
        x = d.attempt(encoder_block, x)
    return d.outcome(x)


def two_inputs(d: Draft) -> tuple[str, ...]:
    """A network of two or three inputs, joined."""
    c = d.pick(3, 4)
    shape = f"n, {c}, 8, 8"
    names = [d.input(f"torch.randn({shape}){input_range(d)}") for _ in range(d.pick(2, 2, 3))]
    sides = [conv(d, n, 8, 3) if d.chance(0.6) else conv(d, n, 8, 1) for n in names]
    x = d.let(d.pick(" + ", " * ", " - ").join(sides) if d.chance(0.5) else f"torch.cat([{', '.join(sides)}], 1)")
    x = apply_blocks(d, x, (activation, norm, *IMAGE_BLOCKS), 1, 2)
    return head(d, x) if d.chance(0.5) else d.outcome(x)


FAMILIES: tuple[Callable[[Draft], tuple[str, ...]], ...] = (
    classifier, classifier, classifier, classifier, windows, windows, encoder, encoder, tokens, tokens, single_ops, mixture,
    mixture, two_inputs,
)  # fmt: skip
"""The families of networks, the common ones more than once."""


def program(seed: int) -> Program:
    """Return the program of a seed; the same one on every machine.

    Two fifths are drawn from the rare families, a quarter have names that meet, and a tenth have layers or batches of zeros.

    >>> program(3) == program(3), program(3) == program(4)
    (True, False)
    """
    source = random.Random(f"{seed}, rare")
    drawn = _drawn(seed, RARE, f"{seed}, rare") if source.random() < 0.4 else common_program(seed)
    if source.random() < 0.1:
        drawn = with_zeros(drawn, source)
    return rename_parts(drawn, source) if source.random() < 0.25 else drawn


def common_program(seed: int) -> Program:
    """Return the program that a seed draws from the common families, with names that do not meet.

    >>> common_program(3).seed
    3
    """
    return _drawn(seed, FAMILIES, str(seed))


def _drawn(seed: int, families: Sequence[Callable[[Draft], tuple[str, ...]]], start: str) -> Program:
    # The first draft that fits as a whole, for another number of examples too.
    for number in count():
        d = Draft(f"{start}, {number}")
        try:
            drawn = _completed(d, d.pick(*families)(d), seed)
            replay(drawn, BATCH - 2)
            return drawn
        except MisfitError:
            continue
    raise AssertionError


def _completed(d: Draft, outputs: tuple[str, ...], seed: int) -> Program:
    changes = _changes(d)
    edits = (d.pick(*EDITS),) if d.chance(0.2) else ()
    export, wide = d.chance(0.5), "1e10" if d.chance(0.05) else "2"
    if d.chance(0.15) and d.is_tensor(outputs[0]) and len(d.shape(outputs[0])) > 1:
        outputs = (d.attempt(size_formula, outputs[0]), *outputs[1:])
    layers, steps = tuple(d.layers), tuple(d.steps)
    return prune(Program(tuple(d.inputs), layers, steps, outputs, changes, edits, export, seed, wide))


def _changes(d: Draft) -> tuple[str, ...]:
    # Statistics of BatchNorms as training leaves them, and at times dead channels, large, small or constant weights.
    changes = []
    norms = [s.split(" = ")[0].replace("self.", "model.") for s in d.layers if "= nn.BatchNorm2d" in s]
    for name in norms:
        if d.chance(0.8):
            changes += [f"{name}.running_mean.normal_(0, 0.5)", f"{name}.running_var.uniform_(0.3, 2)"]
        if d.chance(0.2):
            changes += [f"{name}.weight.normal_()"]
    layers = [s.split(" = ")[0].replace("self.", "model.") for s in d.layers if "= nn.Conv2d" in s or "= nn.Linear" in s]
    if layers and d.chance(0.3):
        name = d.pick(*layers)
        changes.append(d.pick(f"{name}.weight[0] = 0", f"{name}.weight.zero_()", f"{name}.weight.mul_(100)",
                              f"{name}.weight.mul_(1e-5)", f"{name}.weight[:1] *= 1000", f"{name}.weight.abs_()",
                              f"{name}.weight.fill_(0.1)", f"{name}.weight.abs_().neg_()"))  # fmt: skip
    return tuple(changes)
