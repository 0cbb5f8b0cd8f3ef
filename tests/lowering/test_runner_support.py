"""On which CPUs the runners say that they compute as the targets say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError, VerifyError
from qfunc.lowering import runner_support as runtimes
from qfunc.specs import edit
from qfunc.targets.ncnn import runner as ncnn_runner
from qfunc.targets.ncnn.runner import APART
from qfunc.targets.runtimes import ExecuTorchRunner, LiteRtRunner, NcnnRunner, OnnxRuntimeRunner, OpenVinoRunner, TosaRunner
from tests.onnxruntime_target import ONNXRUNTIME

SATURATE = "without VNNI the kernels saturate sums of two products to 16 bits"
ROUND_TWICE = "without FMA its convolutions round twice"


def said(monkeypatch: pytest.MonkeyPatch, machine: str, flags: str | None, artifact: Any = None) -> dict[str, str]:
    """What each runner says on such a CPU; None: the system does not tell what it has."""

    class File:
        def exists(self) -> bool:
            return flags is not None

        def read_text(self) -> str:
            assert flags is not None
            return flags

    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(runtimes, "Path", {"/proc/cpuinfo": File()}.__getitem__)
    runners = (
        OnnxRuntimeRunner(),
        OnnxRuntimeRunner(optimise=False),
        OpenVinoRunner(),
        LiteRtRunner(),
        ExecuTorchRunner(),
        NcnnRunner(),
        TosaRunner(),
    )
    return {repr(runner): text for runner in runners if (text := runner.comparable(artifact))}


def test_other_machines_have_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = map(repr, (OnnxRuntimeRunner(), OpenVinoRunner(), LiteRtRunner(), ExecuTorchRunner(), NcnnRunner()))
    wanted = dict.fromkeys(runners, "aarch64 has other kernels than x86-64")
    assert said(monkeypatch, "aarch64", "asimddp") == wanted


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("avx2 fma bmi", {OnnxRuntimeRunner(): SATURATE, OpenVinoRunner(): SATURATE}),
        ("avx2 fma4 avx_vnni bmi", {NcnnRunner(): ROUND_TWICE}),
        ("avx2 fma avx_vnni bmi", {}),
        ("avx2 fma avx512f avx512_4vnniw bmi", {OnnxRuntimeRunner(): SATURATE, OpenVinoRunner(): SATURATE}),
        ("avx2 fma avx512_vnni bmi", {}),
        (None, {}),
    ],
)
def test_features_decide(monkeypatch: pytest.MonkeyPatch, flags: str | None, wanted: dict[Any, str]) -> None:
    assert said(monkeypatch, "x86_64", flags) == {repr(runner): text for runner, text in wanted.items()}


SSE4 = "sse sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE4} fma movbe aes xsave avx f16c rdrand abm bmi1 avx2 smep bmi2 erms"
RECORDED = {
    "Xeon X5570, Nehalem": ("x86_64", SSE4, "x86-64-sse4", "x86-64-sse4"),
    "FX-4350, Piledriver": ("x86_64", f"{SSE4} fma aes xsave avx f16c lahf_lm xop fma4 tbm bmi1", "x86-64-sse4", "x86-64-avx2"),
    "Ryzen 5 3600, Zen 2": ("x86_64", f"{AVX2} rdseed adx smap clflushopt clwb sha_ni", "x86-64-avx2", "x86-64-avx2"),
    "Xeon Gold 6148, Skylake": (
        "x86_64", f"{AVX2} mpx avx512f avx512dq rdseed adx clwb avx512cd avx512bw avx512vl", "x86-64-avx2", "x86-64-vnni"),
    "Xeon Platinum 8275CL, Cascade Lake": (
        "x86_64", f"{AVX2} avx512f avx512dq clwb avx512cd avx512bw avx512vl ospke avx512_vnni", "x86-64-vnni", "x86-64-vnni"),
    "Core i7-1355U, Raptor Lake": (
        "x86_64", f"{AVX2} sha_ni xsaves split_lock_detect user_shstk avx_vnni dtherm hwp hfi vnmi umip gfni vaes vpclmulqdq",
        "x86-64-avxvnni", "x86-64-avxvnni"),
    "N100, Alder Lake-N": ("x86_64", f"{AVX2} sha_ni avx_vnni dtherm vnmi gfni vaes", "x86-64-avxvnni", "x86-64-avxvnni"),
    "Ryzen 9 7950X3D, Zen 4": (
        "x86_64", f"{AVX2} avx512f avx512dq avx512cd sha_ni avx512bw avx512vl avx512_bf16 vnmi avx512vbmi avx512_vnni",
        "x86-64-vnni", "x86-64-vnni"),
    "EPYC of Zen 5": (
        "x86_64", f"{AVX2} avx512f avx512dq avx512bw avx512vl avx_vnni avx512_bf16 avx512vbmi avx512_vnni avx512_vp2intersect",
        "x86-64-vnni", "x86-64-vnni"),
    "Cortex-A72, Raspberry Pi 4": ("aarch64", "fp asimd evtstrm crc32 cpuid", "arm64", "arm64"),
    "Cortex-A76, Raspberry Pi 5": (
        "aarch64", "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
        "arm64-dotprod", "arm64-dotprod"),
    "Neoverse V1, Graviton 3": (
        "aarch64", "fp asimd aes atomics fphp asimdhp asimdrdm asimddp sha512 sve asimdfhm svei8mm svebf16 i8mm bf16 dgh rng",
        "arm64-i8mm", "arm64-i8mm"),
}  # fmt: skip
"""Processor -> what Python calls its machine, some of its flags in /proc/cpuinfo, its name here, its name for ncnn."""


@pytest.mark.parametrize(("machine", "flags", "wanted", "by_ncnn"), RECORDED.values(), ids=RECORDED)
def test_processors_are_known_by_their_flags(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, wanted: str, by_ncnn: str
) -> None:
    said(monkeypatch, machine, f"flags\t\t: {flags}\nvmx flags\t: vnmi\n")
    assert str(runtimes.this_cpu()) == wanted
    for runner in (OnnxRuntimeRunner(), LiteRtRunner(), ExecuTorchRunner()):
        assert str(runner.cpu) == wanted
    assert str(NcnnRunner().cpu) == by_ncnn  # its kernels go by AVX-512 and FMA
    assert bool(OnnxRuntimeRunner().unlike()) == ("avx512f" not in flags)


def test_avxvnni_alone_sums_as_avx512_in_integers_and_as_avx2_in_float() -> None:
    """MLAS has the same sums of four products; ncnn, XNNPACK's softmax and its products quantized at run time go by AVX-512."""
    here, before = edit.cpu("x86-64-avxvnni"), edit.cpu("x86-64-avx2")
    for target in (targets.onnxruntime, targets.litert, targets.litert_reference):
        assert here(target).kernels == target.kernels
    for target in (targets.ncnn, targets.executorch_xnnpack, targets.executorch_8da4w()):
        assert here(target).kernels == before(target).kernels != target.kernels
    with pytest.raises(SpecError, match="wanted a build for this processor"):
        here(targets.onnxruntime_nbits())


@pytest.mark.parametrize(
    ("layer", "fuses"),
    [
        (nn.Conv2d(6, 6, 3, 2, groups=6), True),
        (nn.Conv2d(6, 12, 3, groups=6), True),
        (nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.ReLU6()), False),
        (nn.Conv2d(6, 6, 3, 3, groups=6), False),
        (nn.Conv2d(6, 6, 3, dilation=2, groups=6), False),
        (nn.Conv2d(6, 6, (3, 5), groups=6), False),
        (nn.Conv2d(6, 6, 3, groups=2), False),
    ],
)
def test_some_depthwise_convolutions_fuse_with_avx512(monkeypatch: pytest.MonkeyPatch, layer: nn.Module, fuses: bool) -> None:
    batches = [torch.ones(1, 6, 9, 8)]
    artifact = qfunc.deploy(targets.ncnn)(qfunc.calibrate(batches)(qfunc.quantize(targets.ncnn)(layer)))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for flags, wanted in (("avx2 fma bmi", APART if fuses else ""), ("avx2 fma avx512f bmi", "")):
        monkeypatch.setattr(runtimes, "has", lambda feature, flags=flags: feature in flags)
        monkeypatch.setattr(ncnn_runner, "has", runtimes.has)
        assert NcnnRunner().comparable(artifact) == wanted


@pytest.mark.parametrize(("target", "runner"), [(ONNXRUNTIME, OnnxRuntimeRunner()), (targets.openvino, OpenVinoRunner())])
@pytest.mark.parametrize(("bits", "wanted"), [(7, ""), (8, SATURATE)])
def test_weights_of_seven_bits_do_not_saturate(
    monkeypatch: pytest.MonkeyPatch, target: Any, runner: Any, bits: int, wanted: str
) -> None:
    x = torch.randn(2, 3, 5, 4)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(edit.weights(bits=bits)(target))(nn.Conv2d(3, 2, 1)))
    artifact = qfunc.deploy(edit.weights(bits=bits)(target))(model)
    assert said(monkeypatch, "AMD64", "avx2 fma bmi", artifact).get(repr(runner), "") == wanted


@pytest.mark.parametrize("given", ["model", "path"])
@pytest.mark.parametrize("call", ["run", "loaded", "inside"])
def test_what_is_no_artifact_is_refused(call: str, given: str) -> None:
    value: Any = nn.Linear(2, 2) if given == "model" else "out"
    runner = OnnxRuntimeRunner()
    with pytest.raises(VerifyError) as error:
        getattr(runner, call)(value, *([[]] if call == "run" else []))
    found = "a Linear" if given == "model" else "a str"
    assert str(error.value) == (
        f"OnnxRuntimeRunner: found {found}, wanted an artifact. Pass the result of qfunc.deploy(target)(calibrated)."
    )
