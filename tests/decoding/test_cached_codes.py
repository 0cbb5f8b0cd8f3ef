"""`cache_bits` of `onnxruntime_nbits`: the cache is int8, or bytes of two codes, and attention is GroupQueryAttention."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.decoding.cache import Recorder
from qfunc.errors import CaptureError, SpecError, VerifyError
from qfunc.specs import Target, edit
from qfunc.testing import check_target
from tests.decoding.decoders import WIDE, tokens
from tests.decoding.made import LENGTH, decoder
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = [exact, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own use of deprecated names

BITS = (8, 4)
KINDS = [(name, bits) for name in WIDE if name != "wide gemma3" for bits in BITS]
STORED = {8: onnx.TensorProto.INT8, 4: onnx.TensorProto.UINT8}


@cache
def target(bits: int) -> Target:
    """Weights of 4 bits, and a cache in codes."""
    return targets.onnxruntime_nbits(4, 32, cache_bits=bits)


@cache
def made(name: str, bits: int) -> tuple[Any, Any]:
    """(calibrated model, artifact)."""
    _, small = decoder(name)
    batches = [small.inputs(tokens(4, length, length)) for length in (LENGTH, 5)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target(bits))(small.program))
    return calibrated, qfunc.deploy(target(bits))(calibrated)


def graph_of(artifact: Any) -> Any:
    return onnx.load_from_string(artifact.files["model.onnx"]).graph


def one_by_one(run: Any, ids: Tensor, state: Any) -> list[Tensor]:
    """(logits, *cache) of tokens that are given one by one."""
    logits = []
    for place in range(ids.shape[1]):
        step, *state = (torch.as_tensor(v) for v in run([ids[:, place : place + 1], torch.full((len(ids), 1), place), *state]))
        logits.append(step)
    return [torch.cat(logits, 1), *state]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_every_step_is_the_runtime_s(name: str, bits: int) -> None:
    """Codes, results of attention and logits, of a prompt and of steps, code by code and bit by bit."""
    calibrated, artifact = made(name, bits)
    graph, layers = graph_of(artifact), WIDE[name].layers
    assert [n.op_type for n in graph.node].count("GroupQueryAttention") == layers
    states = [v.type.tensor_type for v in (*graph.input[2:], *graph.output[1:])]
    assert [t.elem_type for t in states] == [STORED[bits]] * 4 * layers
    assert {t.shape.dim[-1].dim_value for t in states} == {WIDE[name].head * bits // 8}
    report = qfunc.verify_tokens(target(bits), 4)(calibrated, decoder(name)[1].inputs(tokens(2, 5)))
    assert (report.mismatches, report.report.mismatches, report.report.disagreements) == (0, 0, ())
    kinds = {r.kind: 0 for r in report.report.rows}
    for row in report.report.rows:
        kinds[row.kind] += row.name.endswith(("scatter", "scatter_1", "attention"))
    assert (kinds["codes"], kinds["real"]) == (2 * layers, layers)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_a_prompt_at_once_is_its_tokens_one_by_one(name: str, bits: int) -> None:
    """All bits of logits and cache, in the runtime and in the emulation."""
    calibrated, artifact = made(name, bits)
    given = decoder(name)[1].inputs(tokens(3, 11))
    runs = (target(bits).runtime.runner.loaded(artifact), lambda v, m=qfunc.emulate(target(bits))(calibrated): m(*v))
    answers = []
    for run in runs:
        whole = [torch.as_tensor(v) for v in run(given)]
        steps = one_by_one(run, given[0], given[2:])
        assert all(torch.equal(a, b) for a, b in zip(whole, steps, strict=True))
        answers.append(whole)
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("bits", BITS)
def test_rows_of_several_lengths_are_those_alone(bits: int) -> None:
    """The padding is on the left, and out of the order of positions, in which the operator takes tokens."""
    calibrated, artifact = made("wide", bits)
    small, run = decoder("wide")[1], target(bits).runtime.runner.loaded(artifact)
    rows = [tokens(1, length, length)[0] for length in (5, 1, 9, 2)]
    together = qfunc.generate(5, progress=False)(run, small.inputs(rows))
    alone = [qfunc.generate(5, progress=False)(run, small.inputs([row])) for row in rows]
    assert torch.equal(together, torch.cat(alone))
    report = qfunc.verify_tokens(target(bits), 5)(calibrated, small.inputs(rows))
    assert (report.mismatches, report.report.mismatches) == (0, 0)


REFUSED_POSITIONS = {
    "several rows": (
        [[4, 5, 6], [4, 5, 6]],
        "3 tokens of each of 2 rows, after others, wanted one token of each row, or one row: GroupQueryAttention takes no "
        "others after the first. Run each row by itself, or one token after the other.",
    ),
    "a gap": (
        [[0, 1, 2], [0, 1, 5]],
        "the positions [0, 1, 5] in row 1, wanted positions in a run for GroupQueryAttention. Pass those of "
        "decoder.inputs(ids), and after them last + 1.",
    ),
}


@pytest.mark.parametrize("kind", REFUSED_POSITIONS)
def test_positions_that_the_operator_does_not_take_are_refused(kind: str) -> None:
    calibrated, artifact = made("wide", 8)
    positions, found = REFUSED_POSITIONS[kind]
    prompt = decoder("wide")[1].inputs(tokens(2, 4))
    run = target(8).runtime.runner.loaded(artifact)
    given = [tokens(2, 3), torch.tensor(positions), *(torch.as_tensor(v) for v in run(prompt)[1:])]
    for call in (
        lambda: run(given),
        lambda: qfunc.generate(1, progress=False)(run, given),
        lambda: qfunc.verify(target(8))(calibrated, [tuple(given)]),
    ):
        with pytest.raises(VerifyError) as e:
            call()
        assert str(e.value) == f"OnnxRuntimeRunner, input 'positions': found {found}"


def test_one_row_takes_several_tokens_after_others() -> None:
    _, artifact = made("wide", 8)
    run, ids = target(8).runtime.runner.loaded(artifact), tokens(1, 7)
    given = decoder("wide")[1].inputs(ids)
    whole, (first, *state) = run(given), run([ids[:, :4], torch.arange(4)[None], *given[2:]])
    then = run([ids[:, 4:], torch.arange(4, 7)[None], *(torch.as_tensor(v) for v in state)])
    np.testing.assert_array_equal(np.concatenate([first, then[0]], 1), whole[0])


@pytest.mark.parametrize("bits", BITS)
def test_the_file_alone_answers_with_a_smaller_cache(bits: int) -> None:
    """ONNX Runtime without qfunc: codes go out and in, with any number of threads."""
    _, artifact = made("wide", bits)
    small, ids = decoder("wide")[1], tokens(2, 6)
    for threads in (1, 2):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(artifact.files["model.onnx"], options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        run, (_, _, *real) = target(bits).runtime.runner.loaded(artifact), small.inputs(ids)
        kind = np.int8 if bits == 8 else np.uint8
        coded = [np.zeros((*v.shape[:3], v.shape[3] * bits // 8), kind) for v in real]
        for place in range(6):
            step = [ids[:, place : place + 1], torch.full((2, 1), place)]
            logits, *coded = session.run(None, dict(zip(names, [*(v.numpy() for v in step), *coded], strict=True)))
            expected, *real = run([*step, *real])
            np.testing.assert_array_equal(logits, expected)
        assert sum(v.nbytes for v in real) == 32 // bits * sum(v.nbytes for v in coded)


@pytest.mark.parametrize("bits", BITS)
def test_new_keys_are_rounded_by_the_reciprocal_of_the_scale(bits: int) -> None:
    """The codes that the file's session writes, against q = clip(rint(k (1 / s))) of the keys that it computes in float32."""
    _, artifact = made("wide", bits)
    model = onnx.load_from_string(artifact.files["model.onnx"])
    node = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[1], 1, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names, (ids, places, *real) = [i.name for i in session.get_inputs()], decoder("wide")[1].inputs(tokens(3, LENGTH))
    state = [np.zeros((*v.shape[:3], v.shape[3] * bits // 8), np.int8 if bits == 8 else np.uint8) for v in real]
    _, codes, *_, keys = session.run(None, dict(zip(names, [ids.numpy(), places.numpy(), *state], strict=True)))
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).astype(np.int8).reshape(*codes.shape[:3], -1) - 8
    notes = {a.tensor_name: a.quant_parameter_tensor_names[0].value for a in model.graph.quantization_annotation}
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    inverse = np.float32(1) / np.float32(stored[notes["state_0"]])
    expected = np.clip(np.rint(keys * inverse), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    np.testing.assert_array_equal(codes.transpose(0, 2, 1, 3).reshape(keys.shape), expected)


@pytest.mark.parametrize("bits", BITS)
def test_onnx_runtime_warns_of_nothing(bits: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Such as a constant that no node reads; with one, it does."""
    _, artifact = made("wide", bits)
    model = onnx.load_from_string(artifact.files["model.onnx"])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    capfd.readouterr()
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.int8), "unread"))
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert "Removing initializer 'unread'" in capfd.readouterr().err


class Manual(nn.Module):
    """A decoder of one layer, with attention of its own."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.word, self.head, self.attention = nn.Embedding(8, 32), nn.Linear(32, 8), attention

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        """Token ids and positions [N, T] -> logits [N, T, 8]."""
        x = self.word(input_ids)
        q = x.view(*x.shape[:2], 2, 16).transpose(1, 2)
        k, v = past_key_values.update(q, q * 2, 0)
        seen = torch.arange(k.shape[2]) <= position_ids[:, None, :, None]
        return (self.head(self.attention(q, k, v, seen).transpose(1, 2).reshape(x.shape)),)


class Packed(nn.Module):
    """A decoder whose queries, keys and values are parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.qkv, self.head = nn.Embedding(8, 32), nn.Linear(32, 96), nn.Linear(32, 8)

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        """Token ids and positions [N, T] -> logits [N, T, 8]."""
        x = self.word(input_ids)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        k, v = past_key_values.update(k, v, 0)
        seen = torch.arange(k.shape[2]) <= position_ids[:, None, :, None]
        return (self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(x.shape)),)


def test_keys_are_rounded_by_the_operator_alone() -> None:
    """A part of a tensor has codes of its own elsewhere, from a division; here the file rounds nothing before the operator."""
    torch.manual_seed(0)
    small = qfunc.decoder(8)(Packed().eval())
    prompt = small.inputs(torch.randint(0, 8, (3, 7)))
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(target(8))(small.program))
    assert not [n for n in graph_of(qfunc.deploy(target(8))(calibrated)).node if n.op_type == "QuantizeLinear"]
    report = qfunc.verify_tokens(target(8), 1)(calibrated, prompt)
    assert (report.mismatches, report.report.mismatches, report.report.disagreements) == (0, 0, ())


def by_hand(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Without `scaled_dot_product_attention`."""
    return (q @ k.mT).masked_fill(~seen, float("-inf")).softmax(-1) @ v


def reversed_values(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Values of other heads than the keys."""
    return F.scaled_dot_product_attention(q, k, v.flip(1), attn_mask=seen)


def read_twice(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """The cache is read by another op, too."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen) + v[:, :, :1]


WANTED = (
    "wanted one causal scaled_dot_product_attention to the whole cache of a qfunc.decoder, as GroupQueryAttention is. Drop "
    "cache_bits; edit.state() holds a cache in codes for any attention."
)
NONE = "op 'model.scatter': found a cache that no calls of scaled_dot_product_attention read, "
REFUSED = {
    "by hand": (by_hand, NONE),
    "reversed": (
        reversed_values,
        "op 'model.scaled_dot_product_attention': found a value that is not the cache with its heads repeated, ",
    ),
    "twice": (read_twice, "op 'model.scatter_1': found a cache that is also read outside of scaled_dot_product_attention, "),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_attention_is_refused(kind: str) -> None:
    attention, found = REFUSED[kind]
    program = qfunc.decoder(8)(Manual(attention).eval()).program
    with pytest.raises(CaptureError) as e:
        qfunc.quantize(target(8))(program)
    sdpa = 'Load a model of transformers with attn_implementation="sdpa", or drop'
    assert str(e.value) == found + (WANTED.replace("Drop", sdpa) if kind == "by hand" else WANTED)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("wide gemma3", "a mask that does not show the keys up to each query's position, such as a sliding window"),
        ("llama", "heads of 8 channels, which 16 does not divide"),
    ],
)
def test_windows_and_narrow_heads_are_refused(name: str, found: str) -> None:
    with pytest.raises(CaptureError) as e:
        qfunc.quantize(target(8))(decoder(name)[1].program)
    assert str(e.value) == f"op 'model.layers.0.scaled_dot_product_attention': found {found}, {WANTED}"


def test_other_widths_are_refused() -> None:
    odd = targets.onnxruntime_nbits(4, 32, cache_bits=6)
    with pytest.raises(SpecError) as e:
        qfunc.quantize(odd)(decoder("wide")[1].program)
    assert str(e.value) == (
        "target 'onnxruntime_w4_block32_level4_c6', op 'model.layers.0.scatter'; op 'model.layers.0.scatter_1'; op "
        "'model.layers.1.scatter'; op 'model.layers.1.scatter_1': found the kind 'index_put', wanted an op that it runs: "
        "onnxruntime 1.31, group_query_attention.cc: kv_cache_bit_width is 8 or 4. Choose cache_bits=8, 4 or None."
    )


class Ends(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """[..., 32] -> [..., 8]."""
        return self.last(self.first(x))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("submodules", [None, ("first", "last")])
def test_a_model_without_a_cache_is_refused(bits: int, submodules: tuple[str, ...] | None) -> None:
    with pytest.raises(SpecError) as e:
        qfunc.quantize(target(bits), submodules=submodules)(Ends())
    assert str(e.value) == (
        f"target 'onnxruntime_w4_block32_level4_c{bits}': found a model without a unit of CachedAttention(), wanted at least "
        "one: onnxruntime 1.31, GroupQueryAttention: causal attention to the cache of a qfunc.decoder, of its keys and values. "
        "Pass qfunc.decoder(length)(model).program, or drop cache_bits."
    )


class Whole(nn.Module):
    """A decoder that answers all tokens at once."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, ids: Tensor) -> Any:
        """Token ids [N, T] -> logits [N, T, V]."""
        return self.own(ids, torch.arange(ids.shape[1]).expand(ids.shape), Recorder(), True)[0]


def test_a_decoder_that_was_not_captured_with_its_cache_is_refused() -> None:
    program = torch.export.export(Whole(decoder("wide")[0]), (tokens(2, 5),), strict=False)
    with pytest.raises(SpecError, match="found a model without a unit of CachedAttention"):
        qfunc.quantize(target(8))(program)


@pytest.mark.thorough
def test_networks_that_are_drawn_need_no_cache() -> None:
    check_target(targets.onnxruntime_nbits(4, 32, cache_bits=8), examples=2)


def test_a_cache_that_an_edit_holds_in_other_codes_is_refused() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.quantize(edit.state()(target(8)))(decoder("wide")[1].program)
    cache = "found Int(8, signed=False), wanted Int(8): onnxruntime 1.31, group_query_attention.cc: the cache is int8 or int4"
    assert cache in str(e.value)
