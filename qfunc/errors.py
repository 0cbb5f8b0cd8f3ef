"""The errors of qfunc; each message has four parts: where, found, wanted and do."""

from __future__ import annotations


class QfuncError(Exception):
    """The base class of qfunc's errors.

    Attributes:
        where: The place: a spec field, a node of the graph, a site or a file.
        found: What is there, a noun phrase.
        wanted: What should be there, a noun phrase.
        do: The remedy, one or two imperative sentences.

    >>> print(QfuncError(where="Int.bits", found="0", wanted="2 to 64", do="Choose a width."))
    Int.bits: found 0, wanted 2 to 64. Choose a width.
    """

    def __init__(self, *, where: str, found: str, wanted: str, do: str) -> None:
        super().__init__(f"{where}: found {found}, wanted {wanted}. {do}")
        self.where, self.found, self.wanted, self.do = where, found, wanted, do

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.where, self.found, self.wanted, self.do)


def a_or_an(kind: type | str) -> str:
    """Return the name of a class with its article.

    >>> a_or_an(int), a_or_an(float), a_or_an("UNet"), a_or_an("LSTM"), a_or_an("Identity")
    ('an int', 'a float', 'a UNet', 'an LSTM', 'an Identity')
    """
    name = kind if isinstance(kind, str) else kind.__name__
    spelled = name[:2].isupper() or name.startswith("nd")  # pronounced letter by letter
    return f"{'an' if name[0] in ('AEFHILMNORSXn' if spelled else 'AEIOaeio') else 'a'} {name}"


def former_name(old: str, new: str) -> QfuncError:
    """Return the error about a former public name.

    >>> print(former_name("qfunc.replace_relu6", "qfunc.corrections.replace_relu6"))
    qfunc.replace_relu6: found a former name, wanted qfunc.corrections.replace_relu6. Write qfunc.corrections.replace_relu6.
    """
    return QfuncError(where=old, found="a former name", wanted=new, do=f"Write {new}.")


def first_line(error: BaseException) -> str:
    r"""Return the class name of an error and the first line of its message.

    >>> first_line(ValueError("sizes differ\nin two places")), first_line(AssertionError())
    ('ValueError: sizes differ', 'AssertionError: no message')
    """
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _rebuild(kind: type[QfuncError], where: str, found: str, wanted: str, do: str) -> QfuncError:
    return kind(where=where, found=found, wanted=wanted, do=do)


class SpecError(QfuncError, ValueError):
    """A spec that is invalid, or that contradicts the model."""


class CaptureError(QfuncError):
    """A model that the chosen frontend cannot convert to a functional graph."""


class CalibrationError(QfuncError):
    """Qparams that cannot be estimated: no batches, NaN, a wrong batch structure, a step out of order."""


class EmulationError(QfuncError):
    """Integer arithmetic that is not public, or a model that cannot be emulated yet."""


class DeployError(QfuncError):
    """An artifact that cannot be written."""


class VerifyError(QfuncError):
    """A comparison that cannot be made."""


class FileError(QfuncError, ValueError):
    """A file that is damaged, or that qfunc did not write; `where` names the file and the field."""


__all__ = [
    "CalibrationError", "CaptureError", "DeployError", "EmulationError", "FileError", "QfuncError", "SpecError", "VerifyError",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
