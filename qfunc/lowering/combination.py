"""Several lowerings in one artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from qfunc.errors import DeployError
from qfunc.specs import Refuse, Scheme
from qfunc.specs._check import as_tuple, implements, refuse
from qfunc.specs._values import readable
from qfunc.specs.protocols import FixedSizeLowering, LimitedLowering, Lowering, RefusingLowering, VersionedLowering


def _lowerings(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not value:
        do = "Write Combined((QdqLowering(), TensorRtRanges()))."
        raise refuse(instance, attribute.name, value, "at least one lowering", do)
    for one in value:
        implements(Lowering)(instance, attribute, one)
    if len({one.opset for one in value if isinstance(one, VersionedLowering)}) > 1:
        raise refuse(instance, attribute.name, value, "one opset, because all lower the same model", "Give all the same opset.")


@readable
@frozen
class Combined:
    """The files of all `lowerings`, each of which lowers the same model.

    Raises:
        SpecError: no lowering, or lowerings that name different opsets.
        DeployError: (by `lower`) two lowerings write a file of the same name.

    >>> from qfunc.lowering import TensorRtRanges, QdqLowering
    >>> Combined((QdqLowering(), TensorRtRanges()))
    Combined((QdqLowering(), TensorRtRanges()))
    """

    lowerings: tuple[Any, ...] = field(converter=as_tuple, validator=_lowerings)

    @property
    def opset(self) -> int:
        """The opset of the lowerings, or 21.

        >>> from qfunc.lowering import TensorRtRanges, QdqLowering
        >>> Combined((TensorRtRanges(), QdqLowering(opset=13))).opset
        13
        """
        return next((int(one.opset) for one in self.lowerings if isinstance(one, VersionedLowering)), 21)

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """Return the files of every lowering, in their order."""
        files: dict[str, bytes] = {}
        writers: dict[str, Any] = {}
        for lowering in self.lowerings:
            for name, content in lowering.lower(model, sites).items():
                if name in files:
                    raise DeployError(
                        where=f"Combined.lower, file {name!r}",
                        found=f"two files, by {writers[name]!r} and {lowering!r}",
                        wanted="one file of each name",
                        do="Deploy once with each lowering, set by edit.deploy.",
                    )
                files[name], writers[name] = content, lowering
        return files

    @property
    def legality(self) -> tuple[Refuse, ...]:
        """The ops that any of the lowerings refuses.

        >>> from qfunc.lowering import TensorRtRanges, NcnnLowering
        >>> Combined((TensorRtRanges(), NcnnLowering())).legality == NcnnLowering.legality
        True
        """
        limited = (one for one in self.lowerings if isinstance(one, LimitedLowering))
        return tuple(refuse for one in limited for refuse in one.legality)

    @property
    def one_size(self) -> str:
        """The first file of the lowerings that fixes sizes, or ""."""
        return next((one.one_size for one in self.lowerings if isinstance(one, FixedSizeLowering) and one.one_size), "")

    def refuses(self, scheme: Scheme, constant: bool) -> str:
        """Return these lowerings with the one that the first to refuse such a tensor wants instead; empty if all write it.

        >>> from qfunc.lowering import TensorRtRanges, QdqLowering
        >>> from qfunc.specs import Int, Scheme
        >>> Combined((QdqLowering(opset=13), TensorRtRanges())).refuses(Scheme(Int(4)), constant=False).split(": ")[0]
        'Combined((QdqLowering(opset=21), TensorRtRanges()))'
        """
        for lowering in self.lowerings:
            wanted = lowering.refuses(scheme, constant) if isinstance(lowering, RefusingLowering) else ""
            instead, _, because = wanted.partition(": ")
            if instead.startswith(f"{type(lowering).__name__}("):
                return f"{repr(self).replace(repr(lowering), instead)}: {because}"
            if wanted:
                return wanted
        return ""
