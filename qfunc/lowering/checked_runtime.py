"""What a package for another machine needs of a runtime: its files, and the names of the tensors of codes in these files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from attrs import frozen

from qfunc.lowering.artifact import Artifact, file_of, name_of_file


@frozen(eq=False)
class CheckedRuntime:
    """A runtime that `check.py` of a package runs.

    Attributes:
        name: Its name in proof.json.
        files: The artifact's files that it loads, by their default names.
        shown: Return the name in the file of each tensor of codes, "conv.codes".
        settings: Return the fields of proof.json for this runtime alone.
        page: True if the page of the package runs it, in a browser.
    """

    name: str
    files: tuple[str, ...]
    shown: Callable[[Artifact], Mapping[str, str]]
    settings: Callable[[Artifact], dict[str, Any]]
    page: bool = False

    def names(self, artifact: Artifact) -> list[str]:
        """Return the names of its files in an artifact."""
        return [name_of_file(artifact.files, name) for name in self.files]


@runtime_checkable
class CheckedRunner(Protocol):
    """A runner whose runtime `check.py` has."""

    def checked(self) -> CheckedRuntime:
        """Return the runtime with the settings of this runner."""
        ...


def names_of_nodes(artifact: Artifact, file: str, op_type: str, place: Callable[[Any], str]) -> list[str]:
    """Return a name of each ONNX node of a type, by `place`."""
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.files.onnx_model import read_model

    return [place(node) for node in read_model(file_of(artifact.files, file)).graph.node if node.op_type == op_type]
