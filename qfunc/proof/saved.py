"""The check of a saved package with a proof, where qfunc is installed."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import evolve

from qfunc.errors import first_line
from qfunc.files.folder import read_folder
from qfunc.lowering.artifact import Artifact
from qfunc.lowering.runner_support import not_installed, this_cpu
from qfunc.proof.check import check
from qfunc.proof.package import PROOF, read_proof
from qfunc.proof.saved_check import Check, SavedReport
from qfunc.specs import cpus

_MODULES = {"litert": "ai_edge_litert"}


def with_proof_check(directory: str | os.PathLike[str], report: SavedReport) -> SavedReport:
    """Return the checks of a folder, and that of its proof, if it has one, by the runtime on this machine.

    The check is "skipped" where the runtime is not installed, where the files are not those that were deployed, because a
    runtime may crash on them, or where tensors differ and the package is for another processor.

    Raises:
        FileError: a damaged proof; names the file and the field.
    """
    place = Path(directory)
    if not os.path.isfile(place / PROOF):
        return report
    return evolve(report, rows=(*report.rows, _proof(place, report)))


def _proof(place: Path, report: SavedReport) -> Check:
    proof, tensors = read_proof(place, Artifact(read_folder(place)))
    runtime: str = proof["runtime"]
    module = _MODULES.get(runtime, runtime)
    changed = any(r.name == "files" and r.outcome == "failed" for r in report.rows)
    if changed and runtime in ("litert", "ncnn"):
        return Check("proof", "skipped", "the files are not those that were deployed")
    if missing := not_installed(module, module.replace("_", "-")):
        return Check("proof", "skipped", missing)
    try:
        rows = check(proof, tensors, place)
    except Exception as e:  # runtimes have error classes of their own, without a common base
        return Check("proof", "failed", first_line(e))
    equal, wrong = [r.elements for r in rows if r.wanted == "equal"], [r for r in rows if not r.good]
    if not wrong:
        close = f"; {len(rows) - len(equal)} others are close" if len(equal) < len(rows) else ""
        return Check("proof", "ok", f"0 of {sum(equal):,} elements of {len(equal)} tensors differ{close}, by {runtime}")
    seen = f"{len(wrong)} of {len(rows)} tensors differ, {wrong[0].name} first: {wrong[0].differing:,} of {wrong[0].elements:,}"
    here = str(this_cpu())
    if proof["cpu"] != here and proof["cpu"] in map(str, cpus.EVERY):
        return Check("proof", "skipped", f"{seen}; emulated for {proof['cpu']}, and this is {here}")
    return Check("proof", "failed", seen)
