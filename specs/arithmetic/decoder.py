"""Decoders that an engine builds itself, from the hyperparameters in a file, instead of reading a graph."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import instance_of, integer, number, one_of, refuse
from qfunc.specs._values import readable

_ADJACENT = ("llama",)
_NORMED = ("qwen3",)

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""The architectures of llama.cpp that are described."""


@readable
@frozen(kw_only=True)
class DecoderConfig:
    """A decoder of llama.cpp: `general.architecture` and the hyperparameters of a GGUF file.

    x = embedding of the tokens; for each block x = x + W_o attention(RoPE(W_q n), RoPE(W_k n), W_v n) with n = norm(x), and
    x = x + W_d (silu(W_g n) * W_u n) with n = norm(x); logits = W norm(x).  norm is RMSNorm with `epsilon`.  "qwen3" also
    norms each head of queries and keys.

    Args:
        architecture: "llama", "qwen2" or "qwen3".
        blocks: The number of blocks.
        width: Entries of x.
        inner: Entries of W_g n.
        heads, kv_heads: Heads of queries, and of keys and values.
        head_size: Entries of a head.
        vocabulary: The number of tokens.
        context: The most tokens of a sequence that it was trained for.
        epsilon: Of the norms.
        rope_base: Of the angles: position * rope_base^(-2 i / head_size) for pair i.
        tied: The head has the weights of the embedding.
    Raises:
        SpecError: heads that kv_heads does not divide, or a head_size that 8 does not divide.
    Source: llama.cpp, src/models/llama.cpp, qwen2.cpp and qwen3.cpp; ggml, docs/gguf.md.

    >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
    >>> DecoderConfig(architecture="llama", **sizes).adjacent_pairs
    True
    """

    architecture: str = field(validator=one_of(ARCHITECTURES))
    blocks: int = field(validator=integer(1))
    width: int = field(validator=integer(1))
    inner: int = field(validator=integer(1))
    heads: int = field(validator=integer(1))
    kv_heads: int = field(validator=integer(1))
    head_size: int = field(validator=integer(8))
    vocabulary: int = field(validator=integer(1))
    context: int = field(validator=integer(1))
    epsilon: float = field(default=1e-6, validator=number(positive=True))
    rope_base: float = field(default=1e4, validator=number(positive=True))
    tied: bool = field(default=False, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise refuse(self, "kv_heads", self.kv_heads, f"a divisor of {self.heads} heads", "Read both from one config.")
        if self.head_size % 8:
            do = "Smaller rests of a head are rotated in another order, which is not described."
            raise refuse(self, "head_size", self.head_size, "a multiple of 8", do)

    @property
    def adjacent_pairs(self) -> bool:
        """True if RoPE rotates entries 2 i and 2 i + 1 of a head; else i and i + head_size / 2, as in transformers."""
        return self.architecture in _ADJACENT

    @property
    def norms_heads(self) -> bool:
        """True if each head of queries and keys has a norm."""
        return self.architecture in _NORMED

    def tensor(self, parameter: str) -> str | None:
        """Return the name that llama.cpp has for a parameter of a model of transformers, or None if it has none.

        The model may be the attribute `model` of another module, as in `qfunc.decoder`.

        >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
        >>> DecoderConfig(architecture="llama", **sizes).tensor("model.layers.0.mlp.up_proj.weight")
        'blk.0.ffn_up.weight'
        """
        path, _, kind = parameter.rpartition(".")
        if path.startswith(("model.model.", "model.lm_head")):
            path = path.removeprefix("model.")
        if path in _OUTSIDE:
            return f"{_OUTSIDE[path]}.{kind}" if kind == "weight" else None
        start, _, rest = path.removeprefix("model.layers.").partition(".")
        inside = path.startswith("model.layers.") and start.isdecimal() and int(start) < self.blocks
        known = {**_INSIDE, **(_OF_HEADS if self.norms_heads else {})}
        if not inside or rest not in known or (kind == "bias" and known[rest] not in self._biased):
            return None
        return f"blk.{start}.{known[rest]}.{kind}" if kind in ("weight", "bias") else None

    @property
    def shares_values(self) -> bool:
        """True if llama.cpp takes the decoder for one of 70 B parameters, whose few values have more bits in its mixes."""
        return self.blocks == 80 and (
            self.architecture == "qwen2" or (self.architecture == "llama" and self.heads != self.kv_heads)
        )

    def matrices(self) -> tuple[str, ...]:
        """Return the names of the tensors that have rows: the table, the products of each block and the head."""
        parts = [p for p in _INSIDE.values() if not p.endswith("_norm")]
        return ("token_embd.weight", *(f"blk.{i}.{p}.weight" for i in range(self.blocks) for p in parts), "output.weight")

    def row(self, tensor: str) -> int:
        """Return the entries of a row of a matrix.

        >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
        >>> DecoderConfig(architecture="llama", **sizes).row("blk.0.ffn_down.weight")
        96
        """
        rows = {"attn_output": self.heads * self.head_size, "ffn_down": self.inner}
        return rows.get(tensor.split(".")[-2], self.width)

    def module(self, tensor: str) -> str:
        """Return the path of the module of transformers that has a tensor as its weight.

        >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
        >>> DecoderConfig(architecture="llama", **sizes).module("blk.0.ffn_up.weight")
        'model.layers.0.mlp.up_proj'
        """
        part = tensor.split(".")[-2]
        paths = {name: path for path, name in {**_OUTSIDE, **_INSIDE, **_OF_HEADS}.items()}
        return f"model.layers.{tensor.split('.')[1]}.{paths[part]}" if tensor.startswith("blk.") else paths[part]

    @property
    def _biased(self) -> tuple[str, ...]:
        # Products that may have a bias.
        others = ("attn_output", "ffn_gate", "ffn_up", "ffn_down") if self.architecture == "llama" else ()
        return ("attn_q", "attn_k", "attn_v", *others)

    def role(self, tensor: str, looked_up: bool) -> str:
        """Return the tensor that a parameter is for one reader, which looks rows up or multiplies: a tied table has both roles.

        >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
        >>> DecoderConfig(architecture="llama", **sizes).role("token_embd.weight", looked_up=False)
        'output.weight'
        """
        tied = ("token_embd.weight", "output.weight")
        return tensor if tensor not in tied else tied[not looked_up]

    def place(self, tensor: str) -> tuple[int, int, bool]:
        """Return a key that sorts tensors in the order in which the decoder computes with them.

        >>> sizes = dict(blocks=2, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
        >>> decoder = DecoderConfig(architecture="llama", **sizes)
        >>> sorted(["output.weight", "blk.1.attn_q.weight", "blk.0.ffn_up.weight", "token_embd.weight"], key=decoder.place)
        ['token_embd.weight', 'blk.0.ffn_up.weight', 'blk.1.attn_q.weight', 'output.weight']
        """
        first, *rest = tensor.split(".")
        if first != "blk":
            outside = list(_OUTSIDE.values()).index(first)
            return (-1 if outside == 0 else self.blocks, outside, rest[-1] != "weight")
        return (int(rest[0]), _COMPUTED.index(rest[1]), rest[-1] != "weight")

    def needed(self) -> tuple[str, ...]:
        """Return the names of the tensors without which llama.cpp does not load a file; biases may be there too."""
        inside = (*_INSIDE.values(), *(_OF_HEADS.values() if self.norms_heads else ()))
        blocks = (f"blk.{i}.{name}.weight" for i in range(self.blocks) for name in inside)
        return ("token_embd.weight", *blocks, "output_norm.weight")


_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INSIDE = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_OF_HEADS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_COMPUTED = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down",
)  # fmt: skip
