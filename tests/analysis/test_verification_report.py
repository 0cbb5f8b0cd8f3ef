"""A tally counts what differs, and nothing else."""

import torch

from qfunc.analysis.verification_report import Tally


def test_equal_infinities_and_nan_are_equal():
    tally, x = Tally("x", "output"), torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0])
    tally.add(x, x, 1.0)
    assert (tally.elements, tally.mismatches, tally.largest) == (4, 0, 0.0)


def test_what_differs_is_counted_in_lsb():
    tally = Tally("x", "output")
    tally.add(torch.tensor([0.0, 1.0, torch.inf]), torch.tensor([0.5, 1.0, 1.0]), 0.25)
    assert (tally.elements, tally.mismatches, tally.largest) == (3, 2, torch.inf)
