"""What smollm2.py measures: qfunc's targets for language models, and the engines' own quantizers, with their defaults."""

from __future__ import annotations

import copy
import ctypes
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.estimators import Mse
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import LlamaCppRunner

AUTO = torch.export.Dim.AUTO
Gptq = Callable[..., Callable[[Any], Any]]
PLAIN: Gptq = partial(qfunc.gptq, earlier_errors=0)
CPU_FLOAT = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}


@frozen(eq=False)
class Made:
    """A model in its engine: ids [1, T] -> logits [1, T, V], the bytes of its file, and what the tool predicts."""

    run: Callable[[Tensor], Any]
    size: int
    predictions: Mapping[str, Callable[[Tensor], Tensor]] = field(factory=dict)


def plain(source: Any, seen: Tensor) -> Made:
    """Return the float model in PyTorch."""
    size = sum(p.numel() * p.element_size() for p in source.model.parameters())
    return Made(lambda ids: source.model(ids).logits, size)


def of_qfunc(target: Callable[[Any], Target], file: str, source: Any, seen: Tensor, gptq: Gptq | None = None) -> Made:
    """Return a target's file of the model; the logits of its engine, of the simulation and of the emulation."""
    chosen, vary = target(source.model.config), {"input_ids": {0: AUTO, 1: AUTO}}
    program = torch.export.export(source.model, (), {"input_ids": seen[:2]}, dynamic_shapes=vary, strict=False)
    calibrated = qfunc.calibrate([{"input_ids": seen[:1]}], progress=False)(qfunc.quantize(chosen)(program))
    if gptq is not None:
        calibrated = gptq([{"input_ids": ids} for ids in seen.split(4)], progress=False)(calibrated)
    artifact = qfunc.deploy(chosen)(calibrated)
    runner = chosen.runtime.runner
    assert runner is not None
    run = runner.loaded(artifact)
    models = {"simulation": calibrated}
    if file != "model.safetensors":  # the order of sums on a GPU is not public
        models["emulation"] = qfunc.emulate(chosen)(calibrated)
    predictions = {name: partial(_logits, model) for name, model in models.items()}
    return Made(lambda ids: run([ids])[0], len(artifact.files[file]), predictions)


def _logits(model: Callable[..., Any], ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids).logits
    return logits


class FromEmbeddings(nn.Module):
    """The model after its table of tokens: embeddings [1, T, width] -> logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(inputs_embeds=embeddings).logits
        return logits


def of_executorch(source: Any, seen: Tensor) -> Made:
    """Return the file of `targets.executorch_8da4w`, which takes embeddings of a fixed length."""
    target, table = targets.executorch_8da4w(32), source.model.get_input_embeddings()
    with torch.no_grad():
        rows = table(seen[:1])
        program = torch.export.export(FromEmbeddings(source.model).eval(), (rows,), strict=False)
        calibrated = qfunc.calibrate([(rows,)], progress=False)(qfunc.quantize(target)(program))
    artifact, exact = qfunc.deploy(target)(calibrated), qfunc.emulate(target)(calibrated)
    assert target.runtime.runner is not None
    run = target.runtime.runner.loaded(artifact)
    predictions = {"simulation": lambda ids: calibrated(table(ids)), "emulation": lambda ids: exact(table(ids))}
    return Made(lambda ids: run([table(ids).detach()])[0], len(artifact.files["model.pte"]), predictions)


def of_llama_cpp(kind: str, source: Any, seen: Tensor) -> Made:
    """Return the file of llama.cpp's own quantizer, which dequantizes the package's file first."""
    llama = importlib.import_module("llama_cpp.llama_cpp")
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}"), True
    parameters.nthread = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        status = llama.llama_model_quantize(str(source.file).encode(), str(path).encode(), ctypes.byref(parameters))
        if status:
            raise RuntimeError(f"llama_model_quantize returned {status}")
        content = path.read_bytes()
    run = LlamaCppRunner().loaded(SimpleNamespace(files={"model.gguf": content}))
    return Made(lambda ids: run([ids])[0], len(content))


def of_genai(source: Any, seen: Tensor) -> Made:
    """Return the file of onnxruntime-genai's builder: int4, blocks of 32, level 4."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "float"), Path(folder, "int4")
        source.model.save_pretrained(given)
        source.tokenizer.save_pretrained(given)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(given), "-o", str(out), "-p", "int4"]
        command += ["-e", "cpu", "-c", str(Path(folder, "cache"))]
        options = ["--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
        subprocess.run([*command, *options], check=True, capture_output=True)
        size = sum(path.stat().st_size for path in out.glob("model.onnx*"))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(out / "model.onnx", settings, ["CPUExecutionProvider"])
    config = source.model.config
    shape = (1, config.num_key_value_heads, 0, config.hidden_size // config.num_attention_heads)

    def run(ids: Tensor) -> Any:
        feed: dict[str, Any] = {i.name: np.zeros(shape, np.float32) for i in session.get_inputs() if "past" in i.name}
        feed |= {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
        wanted = {i.name for i in session.get_inputs()}
        return session.run(["logits"], {name: value for name, value in feed.items() if name in wanted})[0]

    return Made(run, size)


def of_nncf(mode: str, source: Any, seen: Tensor) -> Made:
    """Return the model of NNCF's `compress_weights`, in OpenVINO; groups of 64 divide 576, the default of 128 does not."""
    import nncf
    import openvino

    vary = {"input_ids": {0: AUTO, 1: AUTO}}
    program = torch.export.export(source.model, (), {"input_ids": seen[:2]}, dynamic_shapes=vary, strict=False)
    model = openvino.convert_model(program)
    groups = {} if mode.startswith("INT8") else {"group_size": 64}
    model = nncf.compress_weights(model, mode=getattr(nncf.CompressWeightsMode, mode), **groups)
    with tempfile.TemporaryDirectory() as folder:
        openvino.save_model(model, Path(folder, "model.xml"))
        size = Path(folder, "model.bin").stat().st_size
    compiled = openvino.Core().compile_model(model, "CPU", CPU_FLOAT)
    return Made(lambda ids: compiled([ids.numpy()])[0].copy(), size)


def of_torchao(source: Any, seen: Tensor) -> Made:
    """Return torchao's 8da4w in PyTorch: 4 bits in blocks of 32, inputs quantized for each token."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_

    model = copy.deepcopy(source.model)
    quantize_(model, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))
    return Made(lambda ids: model(ids).logits, _stored(model))


def of_llm_compressor(method: str, source: Any, seen: Tensor) -> Made:
    """Return llm-compressor's W4A16, symmetric, in groups of 32, run by transformers."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers import quantization

    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    recipe = getattr(quantization, method)(config_groups={"all": scheme}, ignore=["lm_head"])
    data = Dataset.from_dict({"input_ids": seen.tolist(), "attention_mask": torch.ones_like(seen).tolist()})
    counts = {"max_seq_length": seen.shape[1], "num_calibration_samples": len(seen)}
    with tempfile.TemporaryDirectory() as folder:
        source.model.save_pretrained(folder)
        model = type(source.model).from_pretrained(folder).eval()
        oneshot(model=model, processor=source.tokenizer, dataset=data, recipe=recipe, **counts)
        copy.deepcopy(model).save_pretrained(folder, save_compressed=True)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    return Made(lambda ids: model(ids).logits, size)


def of_auto_round(source: Any, seen: Tensor) -> Made:
    """Return AutoRound's W4A16 in groups of 32, run by transformers."""
    from auto_round import AutoRound

    data = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in seen]
    settings = {"bits": 4, "group_size": 32, "sym": True, "seqlen": seen.shape[1], "nsamples": len(seen)}
    method = AutoRound(
        copy.deepcopy(source.model), source.tokenizer, dataset=data, device_map="cpu", enable_torch_compile=False, **settings
    )
    model, _ = method.quantize()
    return Made(lambda ids: model(ids).logits, 0)


def _stored(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder, "model.pt"))
        return Path(folder, "model.pt").stat().st_size


def _gguf(kind: str, config: Any) -> Target:
    return targets.gguf(kind, targets.runtimes.decoder_config(config))


def _nbits(bits: int, config: Any, embedding_bits: int | None = None) -> Target:
    return targets.onnxruntime_nbits(bits, 32, embedding_bits=embedding_bits, threads=1)


def _openvino(bits: int, config: Any) -> Target:
    return targets.openvino_blocks(bits, 32)


def _compressed(scheme: str, config: Any) -> Target:
    return edit.skip(edit.name("lm_head"))(targets.compressed_tensors(scheme, 32, config=config.to_json_string()))


def _searched(target: Callable[[Any], Target], config: Any) -> Target:
    return edit.weights(estimator=Mse(candidates=12, widest=1.1))(target(config))


W4A16 = partial(_compressed, "W4A16")
TOOLS: dict[str, Callable[[Any, Tensor], Made]] = {
    "float, PyTorch": plain,
    **{
        f"qfunc gguf {kind}, llama.cpp": partial(of_qfunc, partial(_gguf, kind), "model.gguf")
        for kind in ("Q8_0", "Q4_0", "Q4_K_M")
    },
    "qfunc gguf Q4_0 Mse, llama.cpp": partial(of_qfunc, partial(_searched, partial(_gguf, "Q4_0")), "model.gguf"),
    "qfunc gguf Q4_0 gptq, llama.cpp": partial(of_qfunc, partial(_gguf, "Q4_0"), "model.gguf", gptq=qfunc.gptq),
    **{f"llama.cpp {kind}, llama.cpp": partial(of_llama_cpp, kind) for kind in ("Q8_0", "Q4_0", "Q4_K_M")},
    "qfunc nbits 8, ONNX Runtime": partial(of_qfunc, partial(_nbits, 8), "model.onnx"),
    "qfunc nbits 4, ONNX Runtime": partial(of_qfunc, partial(_nbits, 4), "model.onnx"),
    "qfunc nbits 4 Mse, ONNX Runtime": partial(of_qfunc, partial(_searched, partial(_nbits, 4)), "model.onnx"),
    "qfunc nbits 4, tokens in 8 bits, ONNX Runtime": partial(of_qfunc, partial(_nbits, 4, embedding_bits=8), "model.onnx"),
    "qfunc nbits 4 gptq, ONNX Runtime": partial(of_qfunc, partial(_nbits, 4), "model.onnx", gptq=qfunc.gptq),
    "genai builder int4, ONNX Runtime": of_genai,
    "qfunc openvino_blocks 8, OpenVINO": partial(of_qfunc, partial(_openvino, 8), "model.onnx"),
    "qfunc openvino_blocks 4, OpenVINO": partial(of_qfunc, partial(_openvino, 4), "model.onnx"),
    "NNCF int8, OpenVINO": partial(of_nncf, "INT8_ASYM"),
    "NNCF int4, OpenVINO": partial(of_nncf, "INT4_SYM"),
    "qfunc executorch_8da4w, ExecuTorch": of_executorch,
    "torchao 8da4w, PyTorch": of_torchao,
    "qfunc W4A16, transformers": partial(of_qfunc, W4A16, "model.safetensors"),
    "qfunc W4A16 Mse, transformers": partial(of_qfunc, partial(_searched, W4A16), "model.safetensors"),
    "qfunc W4A16 Mse gptq, transformers": partial(of_qfunc, partial(_searched, W4A16), "model.safetensors", gptq=qfunc.gptq),
    "qfunc W4A16 gptq, transformers": partial(of_qfunc, W4A16, "model.safetensors", gptq=qfunc.gptq),
    "qfunc W4A16 gptq(earlier_errors=0), transformers": partial(of_qfunc, W4A16, "model.safetensors", gptq=PLAIN),
    "llm-compressor W4A16, transformers": partial(of_llm_compressor, "QuantizationModifier"),
    "llm-compressor W4A16 GPTQ, transformers": partial(of_llm_compressor, "GPTQModifier"),
    "AutoRound W4A16, transformers": of_auto_round,
}
PACKAGES = {
    "llama.cpp": ("llama_cpp", "gguf"), "OpenVINO": ("openvino",), "ExecuTorch": ("executorch",), "NNCF": ("nncf",),
    "genai": ("onnxruntime_genai",), "torchao": ("torchao",), "llm-compressor": ("llmcompressor",),
    "AutoRound": ("auto_round",), "transformers": ("compressed_tensors",),
}  # fmt: skip
NEEDS = {tool: [name for word, names in PACKAGES.items() if word in tool for name in names] for tool in TOOLS}

__all__ = ["NEEDS", "TOOLS", "Made"]
