"""Several lowerings in one artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._check import as_tuple, implements, refuse
from qfunc.specs._values import readable
from qfunc.specs.file_format import format_of
from qfunc.specs.protocols import Lowering


def _lowerings(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not value:
        do = "Write Combined((QdqLowering(), TensorRtRanges()))."
        raise refuse(instance, attribute.name, value, "at least one lowering", do)
    for one in value:
        implements(Lowering)(instance, attribute, one)
    if len({format_of(one).opset for one in value} - {None}) > 1:
        raise refuse(instance, attribute.name, value, "one opset, because all lower the same model", "Give all the same opset.")


@readable
@frozen
class Combined:
    """The files of all `lowerings`, each of which lowers the same model.

    Raises:
        SpecError: no lowering, or lowerings that name different opsets.
        DeployError: (by `lower`) two lowerings write a file of the same name.

    >>> from qfunc.lowering import QdqLowering
    >>> from qfunc.targets.runtimes import TensorRtRanges
    >>> Combined((QdqLowering(), TensorRtRanges()))
    Combined((QdqLowering(), TensorRtRanges()))
    """

    lowerings: tuple[Any, ...] = field(converter=as_tuple, validator=_lowerings)

    @property
    def format(self) -> FileFormat:
        """The opset of the lowerings that have one, the first size that is fixed, and the ops and schemes that any refuses.

        >>> from qfunc.lowering import QdqLowering
        >>> from qfunc.targets.runtimes import TensorRtRanges, NcnnLowering
        >>> Combined((TensorRtRanges(), QdqLowering(opset=13))).format.opset
        13
        >>> Combined((TensorRtRanges(), NcnnLowering())).format.legality == NcnnLowering.format.legality
        True
        """
        formats = [format_of(one) for one in self.lowerings]
        return FileFormat(
            opset=next((one.opset for one in formats if one.opset), None),
            one_size=next((one.one_size for one in formats if one.one_size), ""),
            legality=tuple(refuse for one in formats for refuse in one.legality),
            quantizers=any(one.quantizers for one in formats),
            schemes=tuple(reason for one in formats for reason in one.schemes),
        )

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files of every lowering, in their order."""
        files: dict[str, bytes] = {}
        writers: dict[str, Any] = {}
        for lowering in self.lowerings:
            for name, content in lowering.lower(program).items():
                if name in files:
                    raise DeployError(
                        where=f"Combined.lower, file {name!r}",
                        found=f"two files, by {writers[name]!r} and {lowering!r}",
                        wanted="one file of each name",
                        do="Deploy once with each lowering, set by edit.deploy.",
                    )
                files[name], writers[name] = content, lowering
        return files
