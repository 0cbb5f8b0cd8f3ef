"""The name of each site is free, whatever the names before it are: a law over drawn paths that lead into each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qfunc.placement.site_table import SiteTable
from qfunc.quantizers.site import quantizer_path

PATHS = st.lists(st.sampled_from(["a", "b", "a_1", "output", "to"]), min_size=1, max_size=3).map(".".join)


@pytest.mark.thorough
@given(
    st.lists(st.tuples(PATHS, st.sampled_from(["conv", "a.b", "b"]), st.booleans()), max_size=12), st.lists(PATHS, max_size=3)
)
def test_each_name_is_free_and_no_quantizer_is_inside_another(asked, taken):
    every = [quantizer_path(path, True) for path in taken]
    taken = [p for p in every if not any(q.startswith(f"{p}.") for q in every)]  # the leaves of a tree of modules
    table = SiteTable(taken)
    found = [(table.free_name(path, op, constant), constant) for path, op, constant in asked]
    paths = [*dict.fromkeys(taken), *(quantizer_path(name, constant) for name, constant in found)]
    assert len(set(paths)) == len(paths)
    kept = [p for p in paths if p not in taken]
    assert not [(p, q) for p in paths for q in kept if p != q and (q.startswith(f"{p}.") or p.startswith(f"{q}."))]
    for (path, op, _), (name, _) in zip(asked, found, strict=True):
        assert name in (path, f"{path}@{op}") or name.partition("@")[2].startswith(op)
