"""Whole decoders of `transformers` from their embeddings on: no element that ExecuTorch computes differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.runner_support import other_kernels
from qfunc.targets.runtimes import ExecuTorchRunner
from tests.decoding.test_answers import model
from tests.onnxruntime_target import REASON

pytestmark = [
    pytest.mark.skipif(bool(ExecuTorchRunner().missing()), reason="executorch is not installed"),
    pytest.mark.skipif(bool(other_kernels() or REASON), reason="the kernels' arithmetic is that of x86-64 with VNNI"),
    pytest.mark.filterwarnings("ignore"),  # torch.export warns of its own use of deprecated names
]


class FromEmbeddings(nn.Module):
    """The model after its table of tokens."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def forward(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.own(inputs_embeds=embeddings, use_cache=False).logits
        return logits


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt2", "phi"])
@pytest.mark.parametrize("length", [1, 7])
def test_no_element_differs(name: str, length: int) -> None:
    own, target = model(name), targets.executorch_8da4w()
    table = own.get_input_embeddings()
    ids = torch.randint(3, 64, (3, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        batch = table(ids)
        program = torch.export.export(FromEmbeddings(own), (batch[:1],), strict=False)
        calibrated = qfunc.calibrate([(batch[:1],)], progress=False)(qfunc.quantize(target)(program))
        report = qfunc.verify(target)(calibrated, [(batch[i : i + 1],) for i in range(3)])
    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())
