"""ONNX's own tests of operators: at least 80 % are read, and 95 % of those equal the data of the tests."""

from __future__ import annotations

import warnings

import pytest

from tests.reading.backend_nodes import DIFFERS, EQUAL, cases, outcome


@pytest.mark.thorough
def test_operators_of_onnx() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [outcome(case) for case in cases()]
    read = [o for o in found if o.result in (EQUAL, DIFFERS)]
    equal = [o for o in read if o.result == EQUAL]
    assert len(read) >= 0.8 * len(found), [o for o in found if o not in read]
    assert len(equal) >= 0.95 * len(read), [o.name for o in read if o not in equal]
