"""Checkpoints in transformers and compressed-tensors: codes, weights and logits of a small Llama."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

import qfunc
from benchmarks.torchvision_ops import shim
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Int, edit
from qfunc.specs.formats import E2M1
from qfunc.targets.runtimes import TransformersRunner
from tests.lowering.compressed_tensors.checkpoints import SCHEMES, deployed, layers

MISSING = TransformersRunner().missing()
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.filterwarnings("ignore"),  # torch.export and transformers warn of their own use of deprecated names
]
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])


@pytest.fixture(autouse=True, scope="module")
def _torchvision() -> None:
    """Transformers imports torchvision, whose wheel may have operators of another torch."""
    shim()


@cache
def llama(tied: bool = False) -> Any:
    """Two blocks with grouped queries; each row of a weight has its own range."""
    import transformers

    package: Any = transformers
    torch.manual_seed(0)
    config = package.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        use_cache=False, architectures=["LlamaForCausalLM"], tie_word_embeddings=tied,
    )  # fmt: skip
    model = package.LlamaForCausalLM(config).eval()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data *= 2.0 ** torch.randint(-2, 3, (len(layer.weight), 1))
    return model, torch.export.export(model, (), {"input_ids": IDS}, strict=False)


@cache
def made(scheme: str) -> tuple[Any, Any, Any]:
    """(target, simulation, artifact) of the Llama, its head in float."""
    model, program = llama()
    config = model.config.to_json_string(use_diff=False)
    target = edit.skip(edit.name("lm_head"))(targets.compressed_tensors(scheme, 32, config))
    simulation = qfunc.calibrate([{"input_ids": IDS}], progress=False)(qfunc.quantize(target)(program))
    return target, simulation, qfunc.deploy(target)(simulation)


def weights(simulation: Any) -> dict[str, Any]:
    """The quantizers of weights by the names of their modules."""
    found = {q.module.site.name.removesuffix(".weight"): q.module for q in quantizer_nodes(simulation)}
    return {name: module for name, module in found.items() if module.site.constant}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_codes_are_those_that_compressed_tensors_unpacks(scheme: str) -> None:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    model, _ = llama()
    _, simulation, artifact = made(scheme)
    tensors = load(artifact.files["model.safetensors"])

    for name, module in weights(simulation).items():
        codes, qparams = module.export(model.get_parameter(f"{name}.weight"))
        if "weight" in (held := {key.removeprefix(f"{name}."): v for key, v in tensors.items() if key.startswith(name)}):
            found = held["weight"].float()
        elif module.site.scheme.format == E2M1:
            found = unpack_fp4_from_uint8(held["weight_packed"], *codes.shape, dtype=torch.float32)
        else:
            assert isinstance(module.site.scheme.format, Int)
            found = unpack_from_int32(held["weight_packed"], 4, codes.shape).float()
            if "weight_zero_point" in held:
                zeros = unpack_from_int32(held["weight_zero_point"], 4, qparams.zero_point.shape, packed_dim=0)
                assert torch.equal(zeros.float(), qparams.zero_point)
        assert torch.equal(found, codes.float()), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decompressed_weights_are_those_of_the_simulation(scheme: str) -> None:
    """In every bit, also those that compressed-tensors decompresses in bfloat16 first, because no product is rounded there."""
    model, _ = llama()
    _, simulation, artifact = made(scheme)

    loaded = TransformersRunner().model(artifact)
    with torch.no_grad():
        loaded(IDS)  # weights of layers with quantized inputs are decompressed at the first call

    assert weights(simulation).keys() == {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)} - {"lm_head"}
    for name, module in weights(simulation).items():
        found = loaded.get_parameter(f"{name}.weight")
        assert torch.equal(found.float(), module(model.get_parameter(f"{name}.weight"))), name


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s not in ("W8A8", "MXFP4")])
def test_logits_are_those_of_the_simulation(scheme: str) -> None:
    """Up to the order of float32 sums: some 200 roundings of 2^-24 of the largest logit, where 3 are seen.

    Codes of inputs in E4M3 could differ where x / s of compressed-tensors and x (1 / s) of vLLM's static scales meet a tie
    from two sides; none does here.
    """
    target, simulation, artifact = made(scheme)
    with torch.no_grad():
        wanted = simulation(input_ids=IDS)["logits"].numpy()

    (found,) = TransformersRunner().run(artifact, [IDS])
    report = qfunc.verify(target)(simulation, [{"input_ids": IDS}])

    assert np.abs(found - wanted).max() <= 200 * 2.0**-24 * np.abs(wanted).max()
    assert "against the simulation (no public arithmetic" in report.verdict


@pytest.mark.parametrize("rotated", [False, True])
def test_a_tied_head_is_that_of_the_simulation(rotated: bool) -> None:
    """Rotations make two tensors of it, so that transformers must not tie them again; the bound is that above."""
    model, program = llama(tied=True)
    target = edit.skip(edit.name("lm_head"))(
        targets.compressed_tensors("W4A16", 32, model.config.to_json_string(use_diff=False))
    )
    network = qfunc.rotate()(program) if rotated else program
    simulation = qfunc.calibrate([{"input_ids": IDS}], progress=False)(qfunc.quantize(target)(network))
    artifact = qfunc.deploy(target)(simulation)
    with torch.no_grad():
        wanted = simulation(input_ids=IDS)["logits"].numpy()

    (found,) = TransformersRunner().run(artifact, [IDS])

    assert np.abs(found - wanted).max() <= 200 * 2.0**-24 * np.abs(wanted).max()
    assert ("lm_head.weight" in load(artifact.files["model.safetensors"])) == rotated


def test_tokens_of_int8_have_another_step_in_compressed_tensors() -> None:
    """absmax / 127.5 there, absmax / 127 in vLLM and here: an input moves by at most one step, so y by sum |w| a step."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    model = layers()
    simulation, _ = deployed("W8A8", model)
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(7))
    args = QuantizationArgs(num_bits=8, strategy="token", dynamic=True, symmetric=True)
    scale, zero = compute_dynamic_scales_and_zp(x, args, model)
    seat = next(q for q in quantizer_nodes(simulation) if not q.module.site.constant)

    moved = (fake_quantize(x, scale, zero, args) - seat.module(x)).abs()

    step = x.abs().amax(-1, keepdim=True) / 127
    assert torch.allclose(scale, x.abs().amax(-1, keepdim=True) / 127.5)
    assert bool((moved <= step).all())
    assert bool((moved > 0).any())


def test_a_config_without_an_architecture_is_refused() -> None:
    _, artifact = deployed("FP8", layers())
    with pytest.raises(VerifyError) as caught:
        TransformersRunner().model(artifact)
    assert str(caught.value) == (
        "config.json: found architectures [''], wanted architectures of transformers. "
        "Deploy with the model's config: targets.compressed_tensors(..., config=model.config.to_json_string())."
    )


def test_the_config_is_read_by_compressed_tensors() -> None:
    """A field that it does not know is an error there."""
    from compressed_tensors.quantization import QuantizationConfig

    for scheme in SCHEMES:
        held = json.loads(made(scheme)[2].files["config.json"])["quantization_config"]
        assert QuantizationConfig.model_validate(held).ignore == ["lm_head"]
