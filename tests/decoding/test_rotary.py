"""Scaled rotary embeddings: the answers are the model's own, or a length at which the frequencies change is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from benchmarks.torchvision_ops import shim
from qfunc.decoding.cache import Recorder
from qfunc.errors import CaptureError
from tests.decoding.decoders import Shape, Small, tokens
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names

LIMIT = 8
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {},
    "dynamic": {},
    "yarn": {"original_max_position_embeddings": 16},
    "llama3": LLAMA3,
    "longrope": {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [3.0, 5.0, 7.0, 9.0]},
}


class Frequencies(nn.Module):
    """Angles of positions, with the attributes of `transformers`; the frequencies follow the largest position."""

    def __init__(self, kind: Any, rates: Tensor) -> None:
        super().__init__()
        self.rope_type, self.original_max_seq_len = kind, LIMIT
        parameters = {"original_max_position_embeddings": LIMIT}
        self.layers = next(iter(kind)) + "_" if isinstance(kind, dict) else ""
        self.config = SimpleNamespace(rope_parameters=dict.fromkeys(kind, parameters) if self.layers else parameters)
        for name in ("inv_freq", "original_inv_freq"):
            self.register_buffer(self.layers + name, rates.clone(), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """[N, T] -> [N, T, D / 2]."""
        rates, own = getattr(self, f"{self.layers}inv_freq"), getattr(self, f"{self.layers}original_inv_freq")
        if "default" not in (self.rope_type, *(self.rope_type.values() if self.layers else ())):
            rates.copy_(torch.where(positions.max() >= LIMIT, own / 5, own))
        return positions[..., None].to(torch.float32) * rates


class Scaled(Small):
    """The decoder with such angles."""

    def __init__(self, kind: Any) -> None:
        super().__init__(Shape())
        self.rotary = Frequencies(kind, self.rates)

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        """Token ids and positions [N, T] -> logits [N, T, 31]."""
        x, angles = self.word(input_ids), self.rotary(position_ids)
        for layer in self.layers:
            x = layer(x, angles, position_ids, past_key_values)
        return (self.head(self.norm(x)),)


@torch.no_grad()
def logits(model: nn.Module, ids: Tensor) -> Tensor:
    return model(ids, torch.arange(ids.shape[1])[None], Recorder(), True)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["longrope", "dynamic", {"full": "longrope"}, {"full": "dynamic"}], ids=str)
def test_frequencies_are_those_of_short_texts_or_the_length_is_refused(kind: Any) -> None:
    model, ids = Scaled(kind).eval(), tokens(2, LIMIT)
    short = logits(model, ids)
    long = logits(model, tokens(1, LIMIT + 1))  # leaves the other frequencies in the buffer
    small = qfunc.decoder(LIMIT)(model)
    # float32 sums of at most 64 terms, in another order for other numbers of keys.
    torch.testing.assert_close(small.module(*small.inputs(ids))[0], short, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(model, tokens(1, LIMIT + 1)), long)
    assert model.rotary.rope_type == kind

    calibrated = qfunc.calibrate([small.inputs(ids)], progress=False)(qfunc.quantize(ONNXRUNTIME)(small.program))
    assert qfunc.verify_tokens(ONNXRUNTIME, 2)(calibrated, small.inputs(ids[:, :5])).mismatches == 0
    with pytest.raises(CaptureError) as error:
        qfunc.decoder(LIMIT + 1)(model)
    name = kind if isinstance(kind, str) else kind["full"]
    assert str(error.value) == (
        f"decoder, Scaled: found a length of 9 with the rotary scaling {name!r} in 'rotary', whose frequencies change there, "
        "wanted at most 8. Write qfunc.decoder(8)(model)."
    )


def scaled(family: str, kind: str, factor: float, limit: int) -> Any:
    """A model of `transformers` with weights six times as large as they are initialised, so that its answers vary."""
    shim()
    transformers = pytest.importorskip("transformers")
    parameters = {"rope_type": kind, "rope_theta": 1000.0, "factor": factor, **SCALINGS[kind]}
    sizes: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 64,
    }  # fmt: skip
    if kind == "longrope":
        parameters["original_max_position_embeddings"] = limit
    if kind == "dynamic":
        sizes["max_position_embeddings"] = limit
    if family == "Phi3":
        sizes["original_max_position_embeddings"] = limit
    if family == "Gemma3":
        parameters = {"full_attention": parameters, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
        sizes |= {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config(**sizes, rope_parameters=parameters)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(6)
    return model


@pytest.mark.parametrize(
    ("family", "kind"),
    [("Llama", kind) for kind in SCALINGS] + [("Phi3", "longrope")] + [("Gemma3", kind) for kind in ("linear", "longrope")],
)
@given(factor=st.sampled_from([1.5, 4.0, 8.0]), limit=st.integers(12, 20), length=st.integers(10, 22))
@settings(max_examples=3, deadline=None)
def test_the_answer_is_the_model_s(family: str, kind: str, factor: float, limit: int, length: int) -> None:
    """`model.generate` chooses frequencies by the largest position, Phi-3 computes its cache again there, and 0 is padding."""
    own, ids = scaled(family, kind, factor, limit), 1 + tokens(2, length, length)
    if kind in ("longrope", "dynamic") and length > limit:
        with pytest.raises(CaptureError) as error:
            qfunc.decoder(length)(own)
        assert str(error.value).endswith(f", wanted at most {limit}. Write qfunc.decoder({limit})(model).")
        return
    small = qfunc.decoder(length)(own)
    with torch.no_grad():
        # float32 sums of at most 64 terms, in another order for other numbers of keys, through two layers.
        torch.testing.assert_close(small.module(*small.inputs(ids))[0], own(ids).logits, rtol=1e-4, atol=1e-4)
    count = length - 4
    answer = own.generate(ids[:, :5], max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)[:, 5:]
    assert torch.equal(qfunc.generate(count, progress=False)(small.module, small.inputs(ids[:, :5])), answer)
