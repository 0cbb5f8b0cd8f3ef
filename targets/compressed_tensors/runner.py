"""Run checkpoints with transformers and compressed-tensors."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.execution.batches import tensors_of
from qfunc.lowering.artifact import file_of
from qfunc.lowering.runner_support import files_of, loading, not_installed, require
from qfunc.specs._values import readable

_CONFIG, _TENSORS = "config.json", "model.safetensors"


@readable
@frozen
class TransformersRunner:
    """The model of `config.json` in transformers, whose layers compressed-tensors decompresses, in float32 on the CPU.

    Inputs of layers are quantized and dequantized by compressed-tensors: x / s, and a token of int8 has s = absmax / 127.5,
    where vLLM has 127.  Install the extra `transformers`.  Needs a config with `architectures`.

    >>> TransformersRunner()
    TransformersRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("transformers", "transformers") or not_installed("compressed_tensors", "compressed-tensors")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: a package is not installed, or a config without an architecture of transformers.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: as of `run`.
        """
        model, names = self.model(artifact), json.loads(file_of(files_of(artifact, "TransformersRunner"), _CONFIG))["qfunc"]

        def run(inputs: Sequence[Any]) -> list[Any]:
            given = {name: torch.as_tensor(value) for name, value in zip(names["inputs"], inputs, strict=True)}
            with torch.no_grad():
                result = model(**given)
            held = dict(result) if isinstance(result, dict) else {}
            found = [held[name] for name in names["outputs"]] if held.keys() >= set(names["outputs"]) else tensors_of(result)
            return [value.float().numpy() for value in found]

        return run

    def model(self, artifact: Any) -> Any:
        """Return the model of transformers.

        Raises:
            VerifyError: as of `run`.
        """
        require(self.missing(), "TransformersRunner", "transformers", "transformers 5.23 and compressed-tensors 0.20")
        transformers: Any = importlib.import_module("transformers")
        config = json.loads(file_of(files_of(artifact, "TransformersRunner"), _CONFIG))
        names = config.get("architectures") or [""]
        kind = getattr(transformers, names[0], None)
        if kind is None:
            do = "Deploy with the model's config: targets.compressed_tensors(..., config=model.config.to_json_string())."
            wanted = "architectures of transformers"
            raise VerifyError(where=_CONFIG, found=f"architectures {names!r}", wanted=wanted, do=do)
        with tempfile.TemporaryDirectory() as folder, loading("TransformersRunner", "transformers"):
            # transformers 5.23 has no place for packed zero points, and computes with FP4 in bfloat16, unless it dequantizes.
            groups = config["quantization_config"]["config_groups"].values()
            config["quantization_config"]["dequantize"] = not any(group["input_activations"] for group in groups)
            (Path(folder) / _CONFIG).write_text(json.dumps(config))
            (Path(folder) / _TENSORS).write_bytes(file_of(files_of(artifact, "TransformersRunner"), _TENSORS))
            model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(_in_float32)
        return model


def _in_float32(layer: torch.nn.Module, arguments: Any) -> None:
    # compressed-tensors decompresses FP4 in bfloat16, where each value is exact, before the first call.
    weight: Any = layer.weight
    weight.data = weight.data.float()
