"""Figures near those of a page are equal to it only where a float sum or a named reason allows it."""

import pytest

from tests.pages.printed import About, differences

TRAINED = About(r"accuracy ([\d.]+)%", 0.01, "training amplifies the order of sums")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("scale 0.0152709", "scale 0.0152710"),
        ("scale 3.407e-05 to 7.302e-05", "scale 3.406e-05 to 7.303e-05"),
        ("scale 9.999e-05 of 3", "scale 0.0001 of 3"),
        ("[0.0285, 0.0085]", "[0.0286, 0.0085]"),
        ("a  9.99  b\n─────────\n", "a  10.00  b\n──────────\n"),
        ("accuracy 91.0% of 3 tensors", "accuracy 91.9% of 3 tensors"),
        ("-0.0", "0.0"),
        ("accuracy 1634% reaches", "accuracy 1636% reaches"),
    ],
)
def test_last_digits_and_named_figures_may_differ(shown, printed):
    assert differences(printed, shown, TRAINED) == ""


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("0 of 24 tokens differ", "1 of 24 tokens differ"),
        ("52,755 bytes", "52,754 bytes"),
        ("scale 0.0152709", "scale 0.0152809"),
        ("scale 3.407e-05", "scale 3.407e-06"),
        ("accuracy 91.0%", "accuracy 92.1%"),
        ("loss 91.0%", "loss 91.9%"),
        ("-3 and 4", "3 and 4"),
        ("Int(8)", "Int(7)"),
        ("[1, 2]", "[1, 3]"),
        ("reaches 1634, 449 times", "reaches 1634, 448 times"),
        ("y_1 0.5", "y_2 0.5"),
        ("x86-64-vnni", "x86-32-vnni"),
        ("one 0.5", "two 0.5"),
        ("[0.5, 0.5]", "[0.5, 0.5, 0.5]"),
        ("1.25 ", "1.25 more"),
        ("0.5\n0.5\n", "0.5 0.5\n"),
    ],
)
def test_everything_else_is_a_difference(shown, printed):
    assert differences(printed, shown, TRAINED) == "".join(["--- page\n", "+++ printed\n", *_changed(shown, printed)])


def _changed(shown, printed):
    import difflib

    return list(difflib.unified_diff(shown.splitlines(True), printed.splitlines(True)))[2:]
