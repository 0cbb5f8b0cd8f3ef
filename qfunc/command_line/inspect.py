"""The commands `targets` and `inspect`: tables of the targets, and of the tensors and units of an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qfunc.analysis.report_format import table
from qfunc.files.folder import read_file
from qfunc.lowering.artifact import REPORT
from qfunc.lowering.report_fields import ARTIFACT, read_report
from qfunc.specs import Target


def targets_table() -> tuple[list[dict[str, Any]], str]:
    """Return each target of `qfunc.targets`, as JSON values and as a table."""
    from qfunc import targets

    rows = []
    for name in targets.__all__:
        target = getattr(targets, name)
        called = f"{name}(...)"
        if not isinstance(target, Target):
            rows.append({"name": called, "runtime": "", "lowering": ""})
            continue
        runtime = target.runtime
        described = "" if runtime is None else f"{runtime.name} {runtime.version}".strip()
        rows.append({"name": name, "runtime": described, "lowering": type(target.lowering).__name__ if target.lowering else ""})
    return rows, table(("target", "runtime", "lowering"), [tuple(row.values()) for row in rows])


def inspect(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the report of an artifact, as a JSON value and as tables, by its folder or by one of its files.

    Raises:
        FileError: the report is damaged, or there is none.
    """
    beside = folder.parent / REPORT
    path = folder / REPORT if folder.is_dir() else beside if folder.suffix != ".json" and beside.is_file() else folder
    report = read_report(read_file(path), ARTIFACT, str(path))
    tensors = [
        (t["name"], t["role"], t["format"], _range(t["scale"]), _range(t["zero_point"]), ", ".join(t["readers"]))
        for t in report["tensors"]
    ]
    units = [(u["path"], u["kind"], "integer" if u["integer"] else "float", u["reason"]) for u in report["units"]]
    integer = sum(u["integer"] for u in report["units"])
    spec = report["target"].get("spec")
    name = spec.get("name") if isinstance(spec, dict) else None
    text = [
        f"{name or 'artifact'}: {integer} of {len(units)} units on integers, {len(tensors)} quantized tensors", "",
        table(("tensor", "role", "format", "scale", "zero point", "read by"), tensors), "",
        table(("unit", "op", "computes in", "reason"), units),
    ]  # fmt: skip
    return report, "\n".join(text)


def _range(values: list[Any] | None) -> str:
    if values is None:
        return "in blocks"
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
