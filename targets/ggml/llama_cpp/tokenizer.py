"""Add a tokenizer of transformers to the GGUF file of a decoder."""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from qfunc.errors import DeployError
from qfunc.lowering.artifact import REPORT, Artifact, digests, file_of, name_of_file
from qfunc.targets.ggml.file import GgufTensor, Value, gguf_file

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # gguf.TokenType
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: dict[tuple[Any, ...], str] = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _WORDS + r"\p{N}{1,3}" + _REST), ("ByteLevel", False)): "llama-bpe",
    (("Split", _WORDS + r"\p{N}" + _REST), ("ByteLevel", False)): "qwen2",
}
"""How a tokenizer splits text before it merges -> llama.cpp's name for it, `tokenizer.ggml.pre`."""


def with_tokenizer(artifact: Artifact, tokenizer: Any) -> Artifact:
    """Return an artifact of `LlamaCppLowering` whose file also has a tokenizer, so that llama.cpp takes and returns text.

    Tokens, their types, merges, special tokens and the chat template are those of the tokenizer; ids that it does not use have
    placeholders.

    Args:
        artifact: With "model.gguf".
        tokenizer: A fast tokenizer of transformers: BPE of bytes, which splits text as GPT-2, SmolLM, Llama 3 or Qwen 2 do.
    Raises:
        DeployError: the package gguf is not installed, or another tokenizer.
    Source: gguf-py, gguf/vocab.py and constants.py; llama.cpp, src/llama-vocab.cpp.
    """
    if importlib.util.find_spec("gguf") is None:
        do = "Install qfunc-torch[gguf]."
        raise DeployError(where="with_tokenizer", found="the package gguf is not installed", wanted="gguf 0.19 or later", do=do)
    values, tensors = _read(file_of(artifact.files, "model.gguf"))
    size = int(values[f"{values['general.architecture']}.vocab_size"])
    values = {key: v for key, v in values.items() if not key.startswith("tokenizer.")} | _vocabulary(tokenizer, size)
    files = {**artifact.files, name_of_file(artifact.files, "model.gguf"): gguf_file(values, tensors)}
    report = artifact.report | {"files": digests(files)}
    return Artifact({**files, REPORT: (json.dumps(report, indent=1, sort_keys=True) + "\n").encode()})


def _read(content: bytes) -> tuple[dict[str, Any], list[GgufTensor]]:
    gguf = importlib.import_module("gguf")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        path.write_bytes(content)
        reader = gguf.GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        tensors = [
            GgufTensor(t.name, int(t.tensor_type), tuple(map(int, t.shape[::-1])), t.data.copy()) for t in reader.tensors
        ]
    return values, tensors


def _vocabulary(tokenizer: Any, size: int) -> dict[str, Value]:
    gguf = importlib.import_module("gguf")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described: dict[str, Any] = json.loads(backend.to_str()) if backend is not None else {}
    model, split = described.get("model", {}), described.get("pre_tokenizer") or {}
    before = _splits(split)
    if model.get("type") != "BPE" or before not in _SPLITS:
        found = f"{type(tokenizer).__name__}, {model.get('type', 'slow')}, split by {[step for step, _ in before]}"
        wanted = f"a fast tokenizer, BPE of bytes, split as in {', '.join(_SPLITS.values())}"
        raise DeployError(where="with_tokenizer", found=found, wanted=wanted, do="Add it with the tools of llama.cpp.")
    ids = tokenizer.get_vocab()
    if (largest := max(ids.values())) >= size:
        found, do = f"token {largest}", "Give the tokenizer of the model."
        raise DeployError(where="with_tokenizer", found=found, wanted=f"ids below {size}, the vocabulary of the file", do=do)
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, i in ids.items():
        tokens[i], kinds[i] = token, _NORMAL
    for added in described.get("added_tokens", ()):
        tokens[added["id"]], kinds[added["id"]] = added["content"], _CONTROL if added["special"] else _USER_DEFINED
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=size)
    keys = gguf.Keys.Tokenizer
    held: dict[str, Value] = {keys.MODEL: "gpt2", keys.PRE: _SPLITS[before], keys.LIST: tokens, keys.TOKEN_TYPE: kinds}
    held |= {keys.MERGES: special.merges} if special.merges else {}
    held |= {getattr(keys, f"{kind.upper()}_ID"): i for kind, i in special.special_token_ids.items()}
    held |= {getattr(keys, f"ADD_{kind.upper()}"): adds for kind, adds in special.add_special_token.items()}
    return held | ({keys.CHAT_TEMPLATE: special.chat_template} if isinstance(special.chat_template, str) else {})


def _splits(described: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    steps = described.get("pretokenizers", [described] if described else [])
    return tuple((step["type"], _setting(step)) for step in steps)


def _setting(step: dict[str, Any]) -> Any:
    if step["type"] == "ByteLevel":
        return step["use_regex"] if not step["add_prefix_space"] else None
    return step.get("individual_digits", step.get("pattern", {}).get("Regex"))
