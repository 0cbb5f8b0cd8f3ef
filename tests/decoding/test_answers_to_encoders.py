"""`encoder_decoder` on models of `transformers` with random weights: their own answers, and the runtime's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qfunc
from benchmarks.torchvision_ops import shim
from tests.decoding.made import TARGETS
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = [exact, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own use of deprecated names

TOKENS = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 3}
LAYERS = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in
          (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
SMALL = TOKENS | LAYERS | {"d_model": 32, "forced_eos_token_id": None}
AUDIO = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 40}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", SMALL | AUDIO),
    "bart": ("BartForConditionalGeneration", "BartConfig", SMALL | {"max_position_embeddings": 64}),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Config", SMALL | {"max_position_embeddings": 64}),
    "t5": ("T5ForConditionalGeneration", "T5Config", TOKENS | T5),
}  # fmt: skip


def model(name: str) -> Any:
    """A model with weights larger than they are initialised, so that its answers vary; T5's are large already."""
    shim()
    transformers = pytest.importorskip("transformers")
    kind, config, arguments = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, config)(**arguments)).eval()
    for parameter in made.parameters():
        if parameter.ndim > 1 and name != "t5":
            parameter.data.mul_(6)
    return made


def sources(name: str, rows: int, seed: int) -> Tensor:
    """Features of audio, or a text to translate."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 8, 40, generator=generator)
        if name == "whisper"
        else torch.randint(3, 64, (rows, 11), generator=generator)
    )


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_answer_is_the_model_s_and_the_runtime_s(name: str, kind: str) -> None:
    own, target, source, generator = model(name), TARGETS[kind], sources(name, 3, 1), torch.Generator().manual_seed(2)
    both = qfunc.encoder_decoder(24, source)(own)
    ids = torch.cat([torch.full((3, 1), 3), torch.randint(3, 64, (3, 1), generator=generator)], 1)
    given = {} if name == "whisper" else {"attention_mask": torch.ones_like(source)}
    answer = own.generate(source, decoder_input_ids=ids, max_new_tokens=9, do_sample=False, eos_token_id=None, **given)
    cross = both.encoder_module(source)
    found = qfunc.generate(9, progress=False)(both.decoder.module, both.decoder.inputs(ids, cross))
    assert torch.equal(found, answer[:, -9:])
    assert len(set(found.flatten().tolist())) > 1

    batches = [sources(name, 4, seed) for seed in (3, 4)]
    encoder = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(both.encoder))
    report = qfunc.verify(target)(encoder, [source])
    assert report.disagreements == ()
    prompts = [
        both.decoder.inputs(torch.randint(3, 64, (4, n), generator=generator), both.encoder_module(x))
        for n, x in zip((24, 7), batches, strict=True)
    ]
    decoder = qfunc.calibrate(prompts, progress=False)(qfunc.quantize(target)(both.decoder.program))
    inputs = both.decoder.inputs(ids, target.runtime.runner.run(qfunc.deploy(target)(encoder), [source]))
    tokens = qfunc.verify_tokens(target, 4)(decoder, inputs)
    assert (tokens.tokens, tokens.mismatches, tokens.report.disagreements) == (12, 0, ())
    if (name, kind) != ("whisper", "dynamic"):  # its convolutions are in float there
        assert report.mismatches == 0
    assert tokens.report.mismatches == 0
