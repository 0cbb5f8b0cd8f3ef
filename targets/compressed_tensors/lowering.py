"""Lower a model to a checkpoint of compressed-tensors: the format of quantized weights that vLLM and SGLang load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.errors import SpecError
from qfunc.files.part import Part
from qfunc.files.stored_tensor import file_of_tensors
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat, Int, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme
from qfunc.specs._values import readable
from qfunc.specs.formats import E2M1, E4M3FN, E8M0

_TENSORS, _CONFIG = "model.safetensors", "config.json"


def _object(instance: Any, attribute: Any, value: Any) -> None:
    try:
        held = json.loads(value)
    except (TypeError, ValueError):
        held = None
    if not isinstance(held, dict):
        do = "Pass model.config.to_json_string() of a model of transformers."
        where = f"{type(instance).__name__}.{attribute.name}"
        raise SpecError(where=where, found=repr(value)[:60], wanted="the text of a JSON object", do=do)


@readable
@frozen
class CompressedTensorsLowering:
    """`model.safetensors` with all parameters under their names, and `config.json` with a `quantization_config`.

    The weight of a linear layer X is stored as X.weight_packed, or as X.weight in int8 or E4M3, beside X.weight_scale; a static
    scale of its input is X.input_scale.  All else is stored as it is, in float32.  Integers without inputs that are
    quantized are packed; symmetric inputs have 8 bits.  NVFP4's global scale is a power of two, so that no product of scales
    is rounded.

    Args:
        config: The text of the model's config.json, to which `quantization_config` is added.
    Source: compressed-tensors 0.20, `quantization/quant_args.py`, `compressors/`.

    >>> CompressedTensorsLowering()
    CompressedTensorsLowering()
    """

    config: str = field(default="{}", validator=_object)

    @property
    def format(self) -> FileFormat:
        """Opset 21 is the first with blocks."""
        return FileFormat(opset=21, blocks=True, parameters=True, schemes=held)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a parameter or a layer that the format does not have.
        """
        return {name: b"".join(chunks) for name, chunks in self.join([self.part(program)]).items()}

    def part(self, program: Program) -> Part:
        """Return the tensors of a part of the model, and the descriptions of its layers.

        Raises:
            DeployError: a parameter or a layer that the format does not have.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.targets.compressed_tensors.checkpoint import checkpoint_part

        return checkpoint_part(program.model, program.tensors)

    def join(self, parts: Sequence[Part]) -> Mapping[str, Iterable[bytes]]:
        """Return the files' bytes, of which one tensor at a time is in memory."""
        from qfunc.targets.compressed_tensors.checkpoint import quantization_config

        names = {"inputs": [n for p in parts for n in p.inputs], "outputs": [n for p in parts for n in p.outputs]}
        config = json.loads(self.config) | {"quantization_config": quantization_config(parts), "qfunc": names}
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        if any(name.startswith("lm_head.weight") for name in tensors):  # not tied, or no longer, as after rotations
            config["tie_word_embeddings"] = False
        return {
            _TENSORS: file_of_tensors(tensors, {"format": "pt"}),
            _CONFIG: [(json.dumps(config, indent=2, sort_keys=True) + "\n").encode()],
        }


def held(scheme: Scheme, constant: bool) -> str:
    """Return a description of the schemes that the file holds, or "" for one of them.

    >>> from qfunc.specs.formats import MXFP4
    >>> held(MXFP4, constant=True), held(Scheme(Int(8), Scale(PerToken(), dynamic=True)), constant=False)
    ('', '')
    """
    shared, scale = scheme.scale.shared, scheme.scale
    if not constant:
        static = isinstance(shared, PerTensor) and not scale.dynamic
        fits = static or (isinstance(shared, PerToken) and scale.dynamic)
        fits = fits and scheme.symmetric and (scheme.format == E4M3FN or _is_byte(scheme))
        never_clips = (scale.rounding, scale.divisor, scale.dynamic) == ("ceil", "qmax", True)
        fits = fits or (scheme.format == E2M1 and never_clips and _is_fp4(scale))
        wanted = "symmetric inputs in int8 or E4M3, with one static scale or one scale a token at run time"
        return "" if fits else f"{wanted}, or in MXFP4 or NVFP4 with scales at run time that clip nothing"
    of_rows = isinstance(shared, PerTensor | PerChannel)
    match scheme.format:
        case Int(bits):
            fits = _packed(scheme, constant) or (of_rows and scheme.symmetric and bits <= 8)
        case _ if scheme.format == E4M3FN:
            fits = of_rows
        case _ if scheme.format == E2M1:
            fits = _is_fp4(scale)
        case _:
            fits = False
    wanted = "weights in integers of at most 8 bits, in E4M3 with a scale per tensor or channel, in MXFP4, or in NVFP4"
    return "" if fits else f"{wanted} with a power of two as the scale of the tensor"


def _is_fp4(scale: Scale) -> bool:
    if scale.shared == PerBlock(-1, 32):
        return scale.format == E8M0
    within = scale.within
    stored = within is not None and within.power_of_two and isinstance(within.shared, PerTensor) and not within.dynamic
    return scale.shared == PerBlock(-1, 16) and scale.format == E4M3FN and stored


def _packed(scheme: Scheme, constant: bool) -> bool:
    in_blocks = isinstance(scheme.scale.shared, PerBlock) and scheme.scale.shared.axis == -1
    return constant and in_blocks and isinstance(scheme.format, Int) and scheme.format.bits <= 8


def _is_byte(scheme: Scheme) -> bool:
    return isinstance(scheme.format, Int) and scheme.format.bits == 8 and scheme.format.signed
