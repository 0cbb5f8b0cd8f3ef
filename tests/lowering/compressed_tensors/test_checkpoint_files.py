"""The files of CompressedTensorsLowering: read by their bytes, the fields of the config, and what they cannot hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError, VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Int, PerBlock, Scale, Scheme, edit
from qfunc.specs.formats import MXFP4, NVFP4
from qfunc.targets.compressed_tensors.layers import exponents, pack_words, two_levels
from qfunc.targets.runtimes import CompressedTensorsLowering, TransformersRunner
from qfunc.testing import check_target
from tests.lowering.compressed_tensors.checkpoints import SCHEMES, calibrated, deployed, layers, network, read, weight_of


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bytes_hold_the_weights_of_the_simulation(scheme: str) -> None:
    """Every entry, in float64: products of codes and scales that float32 holds are not rounded."""
    model = layers()
    simulation, artifact = deployed(scheme, model)
    tensors = read(artifact.files["model.safetensors"])

    for seat in quantizer_nodes(simulation):
        site = seat.module.site
        if site.constant:
            wanted = seat.module(model.get_parameter(site.name)).detach().numpy()
            held = np.float32(weight_of(tensors, site.name.removesuffix(".weight"), scheme))
            np.testing.assert_array_equal(held, wanted)
    np.testing.assert_array_equal(tensors["0.bias"], model[0].bias.detach().numpy())


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 40), st.randoms(use_true_random=False))
def test_words_are_one_string_of_bits_a_row(bits: int, rows: int, columns: int, random: Any) -> None:
    """Entry k begins at bit k `bits`, also where it crosses from one word to the next."""
    codes = [[random.randrange(-(1 << bits - 1), 1 << bits - 1) for _ in range(columns)] for _ in range(rows)]

    packed = pack_words(np.array(codes), bits)

    assert packed.dtype == np.int32
    assert packed.shape == (rows, -(-columns * bits // 32))
    for row, held in zip(codes, packed, strict=True):
        number = sum(int(np.uint32(word)) << 32 * i for i, word in enumerate(held))
        assert number == sum(code + (1 << bits - 1) << bits * k for k, code in enumerate(row))


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=9), st.integers(1, 448))
@example([0], 448)
def test_the_scale_of_a_tensor_is_a_power_of_two_that_uses_the_range_of_e4m3(powers: list[int], first: int) -> None:
    scale = np.float32([first * 2.0**n for n in powers])

    inner, outer = two_levels(scale, float(scale.max()))

    assert 224 < inner.max() <= 448
    assert np.frexp(outer)[0] == 0.5
    np.testing.assert_array_equal(inner.astype(np.float64) / outer, scale)
    np.testing.assert_array_equal(2.0 ** (exponents(np.float32(2.0) ** powers).astype(float) - 127), 2.0 ** np.float64(powers))


TENSOR = {"num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True}
CHANNEL = TENSOR | {"strategy": "channel"}
TOKEN = TENSOR | {"strategy": "token", "dynamic": True}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "dynamic": False, "symmetric": True}
FP4 = GROUP | {"type": "float", "scale_dtype": "torch.uint8"}
TWO_LEVELS = FP4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
ARGUMENTS = {
    "W4A16": ("pack-quantized", GROUP, None),
    "W4A16_ASYM": ("pack-quantized", GROUP | {"symmetric": False}, None),
    "W8A8": ("int-quantized", CHANNEL | {"type": "int"}, TOKEN | {"type": "int"}),
    "FP8": ("float-quantized", TENSOR | {"type": "float"}, TENSOR | {"type": "float"}),
    "FP8_CHANNEL": ("float-quantized", CHANNEL | {"type": "float"}, TENSOR | {"type": "float"}),
    "FP8_DYNAMIC": ("float-quantized", CHANNEL | {"type": "float"}, TOKEN | {"type": "float"}),
    "MXFP4A16": ("mxfp4-pack-quantized", FP4, None),
    "NVFP4A16": (
        "nvfp4-pack-quantized",
        TWO_LEVELS,
        None,
    ),
    "W4AFP8": ("pack-quantized", GROUP, TOKEN | {"type": "float"}),
    "MXFP4": ("mxfp4-pack-quantized", FP4, FP4 | {"dynamic": True}),
    "NVFP4": ("nvfp4-pack-quantized", TWO_LEVELS, TWO_LEVELS | {"dynamic": "local"}),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_config_says_how_the_weights_are_stored(scheme: str) -> None:
    """The presets of compressed-tensors, `quantization/quant_scheme.py`, by hand; other fields of the config stay."""
    form, weights, inputs = ARGUMENTS[scheme]

    config = json.loads(deployed(scheme, layers(), '{"hidden_size": 64}')[1].files["config.json"])

    assert config["hidden_size"] == 64
    held = config["quantization_config"]
    assert held["config_groups"] == {
        "group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None, "format": form,
        }
    }  # fmt: skip
    assert (held["quant_method"], held["quantization_status"], held["format"], held["ignore"]) == (
        "compressed-tensors", "compressed", form, [],
    )  # fmt: skip


def test_static_scales_of_inputs_are_stored_for_each_layer() -> None:
    """Layers that read one tensor have the same scale."""
    simulation, artifact = deployed("FP8", layers())
    tensors = read(artifact.files["model.safetensors"])

    scales = {q.readers[0]: q.module.qparams().scale.item() for q in quantizer_nodes(simulation) if not q.module.site.constant}

    assert [tensors[f"{name}.input_scale"].tolist() for name in ("0", "2")] == [[s] for s in scales.values()]


class Gated(nn.Module):
    """Two layers that read one tensor, whose weights have ranges of their own, and one that reads another."""

    def __init__(self, powers: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.last = (nn.Linear(64, 64, bias=False) for _ in range(3))
        for layer, power in zip((self.first, self.second), powers, strict=True):
            layer.weight.data *= 2.0**power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.last(self.first(x) * self.second(x))
        return last


@pytest.mark.parametrize("scheme", ["NVFP4", "NVFP4A16"])
@pytest.mark.parametrize("powers", [(0, 3), (0, -9), (-20, 0)])
def test_layers_that_read_one_tensor_have_one_global_scale(scheme: str, powers: tuple[int, int]) -> None:
    """VLLM fuses them, and takes the largest global scale for all; the file still has the values of the simulation."""
    model = Gated(powers).eval()

    simulation, artifact = deployed(scheme, model)

    tensors = read(artifact.files["model.safetensors"])
    first, second, last = (tensors[f"{name}.weight_global_scale"].item() for name in ("first", "second", "last"))
    largest = max(model.first.weight.abs().max().item(), model.second.weight.abs().max().item())
    assert first == second == 2.0 ** np.floor(np.log2(448 * 6 / largest))
    assert last == 2.0 ** np.floor(np.log2(448 * 6 / model.last.weight.abs().max().item()))
    for name in ("first", "second", "last"):
        seat = next(q for q in quantizer_nodes(simulation) if q.module.site.name == f"{name}.weight")
        wanted = seat.module(model.get_parameter(f"{name}.weight")).detach().numpy()
        np.testing.assert_array_equal(np.float32(weight_of(tensors, name, scheme)), wanted)


def test_layers_that_read_one_tensor_have_one_scale_of_fp8() -> None:
    """So that vLLM, which quantizes their weights again to the largest of their scales, changes no code."""
    tensors = read(deployed("FP8", Gated((0, 3)).eval())[1].files["model.safetensors"])

    first, second, last = (tensors[f"{name}.weight_scale"].item() for name in ("first", "second", "last"))

    assert first == second > last


def test_layers_in_float_are_ignored_and_other_parameters_stay_as_they_are() -> None:
    model = network()
    target = edit.skip(edit.name("2", "3"))(targets.compressed_tensors("FP8_DYNAMIC"))

    files = qfunc.deploy(target)(calibrated(model, target, torch.randn(2, 3, 64))).files

    tensors = read(files["model.safetensors"])
    assert json.loads(files["config.json"])["quantization_config"]["ignore"] == ["2", "3"]
    assert sorted(tensors) == ["0.bias", "0.weight", "0.weight_scale", "1.bias", "1.weight", "2.bias", "2.weight", "3.weight"]
    for name in ("0.bias", "1.bias", "1.weight", "2.bias", "2.weight", "3.weight"):
        np.testing.assert_array_equal(tensors[name], model.get_parameter(name).detach().numpy())


def test_layers_of_two_kinds_are_named_in_two_groups() -> None:
    target = edit.override(edit.name("2"), weights={"bits": 3})(targets.compressed_tensors("W4A16", 32))

    files = qfunc.deploy(target)(calibrated(layers(), target, torch.randn(2, 3, 64))).files

    held = json.loads(files["config.json"])["quantization_config"]
    assert [group["targets"] for group in held["config_groups"].values()] == [["0"], ["2"]]
    assert [group["weights"]["num_bits"] for group in held["config_groups"].values()] == [4, 3]
    assert held["format"] == "pack-quantized"
    assert read(files["model.safetensors"])["2.weight_packed"].shape == (64, 96 * 3 // 32)


class Tied(nn.Module):
    """An embedding whose table is the weight of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mid, self.lm_head = nn.Embedding(11, 64), nn.Linear(64, 64), nn.Linear(64, 11, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.mid(self.embed(ids)))


def test_a_head_that_is_tied_to_the_embedding_stays_in_float() -> None:
    """Its module is named by its own path too, because the model of transformers has a layer of that name."""
    torch.manual_seed(0)
    plain = targets.compressed_tensors("W8A8")
    target, ids = edit.skip(edit.name("lm_head"))(plain), torch.tensor([[1, 2, 3]])

    files = qfunc.deploy(target)(calibrated(Tied().eval(), target, ids)).files

    assert "lm_head" in json.loads(files["config.json"])["quantization_config"]["ignore"]
    assert sorted(read(files["model.safetensors"])) == ["embed.weight", "mid.bias", "mid.weight", "mid.weight_scale"]
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(plain)(Tied().eval())
    assert str(caught.value) == (
        "target 'compressed_tensors_w8a8', op 'lm_head', weight 'embed.weight': found a weight that other ops read in float, "
        "wanted one that only linear layers read. Keep the layer in float: edit.skip(edit.name('lm_head'))."
    )


@pytest.mark.parametrize("exports", [False, True])
def test_a_tied_parameter_is_stored_by_its_first_name(exports: bool) -> None:
    """As transformers stores it: vLLM skips the weight of a head that is tied, and loads the table of embeddings."""
    model, ids = Tied().eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    target = edit.skip(edit.name("lm_head"))(targets.compressed_tensors("W8A8"))
    program = torch.export.export(model, (ids,), strict=False) if exports else model
    stored = read(qfunc.deploy(target)(calibrated(program, target, ids)).files["model.safetensors"])
    assert {name for name, _ in model.named_parameters()} | {"mid.weight_scale"} == set(stored)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_of_its_own_is_not_tied_in_the_config(tied: bool) -> None:
    """As after `rotate`, with the config of a tied model; the field's default differs between architectures."""
    model, ids = Tied().eval(), torch.tensor([[1, 2, 3]])
    if not tied:
        model.lm_head = nn.Linear(64, 11)
    config = json.dumps({"tie_word_embeddings": True})
    target = edit.skip(edit.name("lm_head"))(targets.compressed_tensors("W8A8", config=config))
    files = qfunc.deploy(target)(calibrated(model, target, ids)).files
    assert json.loads(files["config.json"])["tie_word_embeddings"] == tied


class Functional(nn.Module):
    """A product of a parameter that is no weight of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.table)


def test_what_no_module_holds_is_refused() -> None:
    target = targets.compressed_tensors("W8A8")
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(calibrated(Functional().eval(), target, torch.randn(2, 64)))
    assert str(caught.value) == (
        "tensor 'table': found a weight of no module, wanted that of a module, X.weight. "
        "Compute the product by torch.nn.Linear, or leave it in float by edit.skip."
    )


class Recurrent(nn.Module):
    """An LSTM, whose gates are in another order in ONNX, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def test_parameters_that_are_stored_in_another_form_are_refused() -> None:
    target = targets.compressed_tensors("W8A8")
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(calibrated(Recurrent().eval(), target, torch.randn(2, 3, 8)))
    assert str(caught.value) == (
        "tensor 'lstm.weight_ih_l0': found another form of the parameter in ONNX, wanted the parameter as it is, or as the "
        "weight of a linear layer. Deploy the layers that are quantized, as submodules."
    )


def test_schemes_that_the_format_does_not_have_are_refused_before_calibration() -> None:
    refuses = CompressedTensorsLowering().format.refuses
    wanted = (
        "weights in integers of at most 8 bits, in E4M3 with a scale per tensor or channel, in MXFP4, or in NVFP4 with a power "
        "of two as the scale of the tensor"
    )
    assert refuses(NVFP4, constant=True) == wanted
    assert refuses(Scheme(Int(16)), constant=True) == wanted
    inputs = (
        "symmetric inputs in int8 or E4M3, with one static scale or one scale a token at run time, or in MXFP4 or NVFP4 with "
        "scales at run time that clip nothing"
    )
    clipping = evolve(MXFP4, scale=evolve(MXFP4.scale, dynamic=True))
    assert refuses(clipping, constant=False) == inputs
    inputs_of_nvfp4 = targets.compressed_tensors("NVFP4").rules[0].input.scale
    of_each_call = evolve(inputs_of_nvfp4, within=evolve(inputs_of_nvfp4.within, dynamic=True))  # the file has one number
    assert refuses(evolve(NVFP4, scale=of_each_call), constant=False) == inputs
    assert not refuses(evolve(clipping, scale=evolve(clipping.scale, rounding="ceil", divisor="qmax")), constant=False)
    assert refuses(Scheme(Int(8), Scale(PerBlock(-1, 32), dynamic=True)), constant=False) == inputs
    assert refuses(Scheme(Int(16)), constant=False) == inputs
    assert not refuses(Scheme(Int(8)), constant=False)
    with pytest.raises(SpecError) as caught:
        edit.activations(bits=16)(targets.compressed_tensors("W8A8"))
    assert "found activations that kernels quantize at run time" in str(caught.value)


def test_a_config_is_the_text_of_an_object() -> None:
    with pytest.raises(SpecError) as caught:
        targets.compressed_tensors("FP8", config="[]")
    assert str(caught.value) == (
        "CompressedTensorsLowering.config: found '[]', wanted the text of a JSON object. "
        "Pass model.config.to_json_string() of a model of transformers."
    )


def test_a_config_without_an_architecture_of_transformers() -> None:
    if missing := TransformersRunner().missing():
        with pytest.raises(VerifyError) as caught:
            TransformersRunner().run(Artifact({"qfunc.json": b"{}"}), [])
        assert str(caught.value) == (
            f"TransformersRunner: found {missing}, wanted transformers 5.23 and compressed-tensors 0.20 or later. "
            "Install qfunc-torch[transformers], or pass runtime=run, where run(artifact, inputs) -> outputs."
        )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:check_target.* found no runtime")
@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "W8A8"])
def test_the_laws_of_targets_hold(scheme: str) -> None:
    torch.manual_seed(0)
    check_target(
        edit_runner(targets.compressed_tensors(scheme, 32)),
        models=[(layers(), torch.randn(2, 3, 64)), (layers(), torch.randn(5, 64))],
    )


def edit_runner(target: Any) -> Any:
    """The target without its runner, which needs a model of transformers."""
    from attrs import evolve

    return evolve(target, runtime=evolve(target.runtime, runner=None))


@pytest.mark.parametrize("block", [32, 64])
def test_blocks_are_those_of_the_call(block: int) -> None:
    assert targets.compressed_tensors("W4A16", block).rules[0].weight.scale.shared == PerBlock(-1, block)
