"""Overrides: later edits win; what calibration widens stays a scale that the hardware takes."""

import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Fusion, FusionStep, KeepFloat, edit


def formats(target):
    """Weight name -> bits on a net of two layers."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1))
    sites = (s.module.site for s in quantizer_nodes(qfunc.quantize(target)(net)))
    return {s.name: s.scheme.format.bits for s in sites if s.slot == "weight"}


def test_a_later_override_of_bits_wins_though_it_is_wider():
    mine = edit.pipe(targets.tensorrt, edit.weights(bits=4), edit.override(edit.name("1"), weights={"bits": 8}))
    assert formats(mine) == {"0.weight": 4, "1.weight": 8}


def test_an_override_of_the_estimator_keeps_the_bits():
    ema = qfunc.estimators.Ema()
    mine = edit.pipe(targets.tensorrt, edit.weights(bits=4), edit.override(edit.name("1"), weights={"estimator": ema}))
    assert formats(mine) == {"0.weight": 4, "1.weight": 4}


def test_a_widened_scale_of_a_power_of_two_chip_is_a_power_of_two():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight[0] = 1e-12
        layer.bias[0] = 0.7
    target = edit.pipe(targets.onnxruntime, edit.weights(power_of_two=True), edit.activations(power_of_two=True))
    calibrated = qfunc.calibrate([torch.randn(8, 3)])(qfunc.quantize(target)(layer))
    scale = next(s.module.scale for s in quantizer_nodes(calibrated) if s.module.site.slot == "weight").flatten()
    assert scale[0] > 1e-12
    assert torch.equal(torch.frexp(scale).mantissa, torch.full((2,), 0.5))


def test_an_input_may_be_skipped_where_no_op_reads_its_codes():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, ids, gain):
            return self.head(self.word(ids)) * gain

    chip, free = targets.onnxruntime, edit.inputs(edit.op("mul"), KeepFloat())
    for target, there in (
        (edit.skip(edit.name("ids"))(chip), True),
        (edit.pipe(chip, edit.skip(edit.name("gain")), free), False),
    ):
        placed = {s.module.site.name for s in quantizer_nodes(qfunc.quantize(target)(Words().eval()))}
        assert "ids" not in placed
        assert ("gain" in placed) is there


def test_an_edge_may_be_named_behind_an_op_that_moves_its_codes():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).eval()
    change = edit.add(edit.op("linear"), input=KeepFloat(), edges=edit.name("0"))
    quantized = qfunc.quantize(edit.skip(edit.name("0"))(change(targets.onnxruntime)))(net)
    assert [s.module.site.name for s in quantizer_nodes(quantized)] == ["2.weight", "2"]


def test_a_fusion_may_name_what_folds_away():
    fusion = Fusion(edit.op("conv") & edit.name("0"), (FusionStep(edit.name("1")), FusionStep(edit.op("tanh"))))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh()).eval()
    placed = [s.module.site.name for s in quantizer_nodes(qfunc.quantize(edit.fuse(fusion)(targets.onnxruntime))(net))]
    assert "0" not in placed  # conv and tanh are one unit
