"""JSON text from outside: limited length and depth, finite numbers, each key once; and JSON text in lines."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import accumulate
from typing import Any, NoReturn

from qfunc.errors import FileError

LONGEST = 1 << 28
"""The largest number of bytes of a JSON text; the report of a network with 10^7 scales has fewer."""
DEEPEST = 100
"""The largest depth of a JSON text; the targets of qfunc need 13."""
WRITE_AGAIN = "Write the file again: it is damaged, or another program changed it."

_DIGITS = 20  # of an integer: all numbers of 64 bits have no more
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_PLAIN = json.JSONEncoder()
SORTED = json.JSONEncoder(sort_keys=True)
"""For `in_lines` with sorted keys."""
_quoted = json.encoder.encode_basestring_ascii
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def damage_error(file: str, field: str, found: str, wanted: str) -> FileError:
    """Return the error for one field of a file; the field is "" for the whole file."""
    return FileError(where=f"{file}: {field}" if field else file, found=found, wanted=wanted, do=WRITE_AGAIN)


def parse(content: bytes | str, file: str) -> Any:
    """Return the value of a JSON text.

    Args:
        content: The text, or its bytes in UTF-8.
        file: The name of the file in errors.
    Raises:
        FileError: it is no JSON, too long or too deep, or it has a key twice, NaN, an infinity, an integer of more than
            64 bits or half of a surrogate pair.

    >>> parse('{"bits": [8, 0.5]}', "mine.json")
    {'bits': [8, 0.5]}
    >>> parse('{"bits": 8, "bits": 4}', "mine.json")
    Traceback (most recent call last):
    qfunc.errors.FileError: mine.json: found the key 'bits' twice, wanted each key once. Write the file again: it is damaged, \
or another program changed it.
    """
    if len(content) > LONGEST:
        raise damage_error(file, "", f"{len(content):,} bytes", f"at most {LONGEST:,}")
    text = _decode(content, file) if isinstance(content, bytes) else content
    if (depth := _depth(text)) > DEEPEST:
        raise damage_error(file, "", f"JSON of depth {depth:,}", f"at most {DEEPEST}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise damage_error(file, "", f"the key {_short(twice)} twice", "each key once")
        return found

    def integer(digits: str) -> int:
        if len(digits.lstrip("-")) > _DIGITS:
            raise damage_error(file, "", f"an integer of {len(digits):,} digits", f"at most {_DIGITS}")
        return int(digits)

    def real(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise damage_error(file, "", f"the number {_short(digits)[1:-1]}", "finite numbers")
        return value

    def no_number(name: str) -> NoReturn:
        raise damage_error(file, "", f"the number {name}", "finite numbers")

    hooks: dict[str, Any] = {
        "object_pairs_hook": unique,
        "parse_int": integer,
        "parse_float": real,
        "parse_constant": no_number,
    }
    try:
        value = json.loads(text, **hooks)
    except json.JSONDecodeError as e:
        raise damage_error(file, "", f"no JSON ({e})", "JSON text") from e
    if not _encodes(text) or (_SURROGATE.search(text) and not _encodes(json.dumps(value, ensure_ascii=False))):
        raise damage_error(file, "", "half of a surrogate pair", "Unicode text")
    return value


def in_lines(value: Any, encoder: json.JSONEncoder = _PLAIN, line: str = "\n") -> str:
    """Return the text of `json.dumps(value, indent=1)`, several times faster; `encoder` sorts keys and refuses NaN, or not.

    >>> print(in_lines({"bits": [8, 0.5], "none": []}))
    {
     "bits": [
      8,
      0.5
     ],
     "none": []
    }
    """
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is int:
        return repr(value)
    if value is None or kind is bool:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, dict) and value:
        inner = line + " "
        rows = sorted(value.items()) if encoder.sort_keys else value.items()
        return f"{{{inner}{f',{inner}'.join([f'{_key(k)}: {in_lines(v, encoder, inner)}' for k, v in rows])}{line}}}"
    if isinstance(value, list | tuple) and value:
        inner = line + " "
        return f"[{inner}{f',{inner}'.join([in_lines(v, encoder, inner) for v in value])}{line}]"
    return encoder.encode(value)


def _key(key: Any) -> str:
    return _quoted(key if isinstance(key, str) else _PLAIN.encode(key))


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise damage_error(file, "", f"bytes that are not UTF-8, at {e.start:,}", "UTF-8 text") from e


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(text: str) -> int:
    # Brackets inside strings do not count.  json.loads itself would recurse.
    steps = map(_STEP.__getitem__, _BRACKET.findall(_STRING.sub("", text)))
    return max(accumulate(steps, initial=0))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
