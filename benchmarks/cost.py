"""What the steps cost on paper: operations, memory and bytes sent, and what they would take on hardware that was not there.

    python benchmarks/cost.py [--page docs/scale.md]

The formulas count multiplications and additions of matrix products; all else is small beside them where widths are large.
`scale.py` compares their growth with measurements on a CPU.  The table of this script is an extrapolation: its speeds are those
of data sheets times an assumed share, and nothing of it was run on a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attrs import frozen


@frozen
class Network:
    """A decoder: attention with `keys` key heads of `heads`, and a gated feed-forward layer.

    Attributes:
        sites: The quantized tensors of a block; 29 are those of `scale.py` for `targets.onnxruntime`.
    """

    width: int
    inner: int
    depth: int
    heads: int
    keys: int
    vocabulary: int = 0
    sites: int = 29

    @property
    def inputs(self) -> list[tuple[int, list[int]]]:
        """(n, outputs of each linear layer that reads it) for each tensor of n channels that linear layers of a block read."""
        d, narrow = self.width, self.width * self.keys // self.heads
        return [(d, [d, narrow, narrow]), (d, [d]), (d, [self.inner, self.inner]), (self.inner, [d])]

    @property
    def layer(self) -> int:
        """The weights of linear layers in a block."""
        return sum(n * sum(outs) for n, outs in self.inputs)

    @property
    def products(self) -> int:
        """The weights that a token multiplies: the blocks and the head."""
        return self.depth * self.layer + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All weights: also the embedding."""
        return self.products + self.vocabulary * self.width


@frozen
class Work:
    """Operations in float32 and float64, and kernels that run one after the other on vectors."""

    single: float = 0
    double: float = 0
    columns: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.single + other.single, self.double + other.double, self.columns + other.columns)

    def __mul__(self, by: float) -> Work:
        return Work(by * self.single, by * self.double, by * self.columns)

    @property
    def operations(self) -> float:
        """Operations, those in float64 twice, because they take twice the time."""
        return self.single + 2 * self.double


def forward(net: Network, tokens: float, length: int) -> Work:
    """2 P T of the linear layers, and 4 t d T a block of attention over t tokens."""
    return Work(2 * net.products * tokens + 4 * length * net.width * tokens * net.depth)


def calibrate(net: Network, tokens: float, length: int) -> Work:
    """A float pass."""
    return forward(net, tokens, length)


def sensitivity(net: Network, tokens: float, length: int) -> Work:
    """A float pass, and half of one for each of S sites."""
    return forward(net, tokens, length) * (1 + net.depth * net.sites / 2)


def moments(net: Network, tokens: float) -> Work:
    """9/8 n^2 T for H, of which 36 of 64 blocks are computed, and 2 n^2 T for C, for each input of n channels."""
    return Work(net.depth * sum((9 / 8 + 2) * n**2 * tokens for n, _ in net.inputs))


def rounding(net: Network, passes: int = 2) -> Work:
    """Of the layers with an input: H^-1 and its factor, 5/3 n^3 4 n^2 m in float64; then (5 + 2 passes) n^2 m in columns."""
    found = Work()
    for n, outs in net.inputs:
        double, single = 5 * n**3 / 3 + 4 * n**2 * sum(outs), (5 + 2 * passes) * n**2 * sum(outs)
        found += Work(single, double, (1 + passes) * n)
    return found * net.depth


def gptq(net: Network, tokens: float, length: int) -> Work:
    """Two passes, the moments, and the rounding."""
    return forward(net, tokens, length) * 2 + moments(net, tokens) + rounding(net)


def reconstruct(net: Network, tokens: float, length: int, seen: int) -> Work:
    """Four passes, one of them in float, and 4 P for each of the tokens that the iterations of a layer see.

    The gradient of the inputs of a layer is not computed; in a block of several layers it is, which takes up to 6 P.
    """
    return forward(net, tokens, length) * 4 + Work(4 * net.products * seen)


def sent(net: Network) -> float:
    """Bytes that a rank sends in `gptq`: twice H and C in float64 for each input, with any number of ranks."""
    return net.depth * sum(2 * 2 * 8 * n**2 for n, _ in net.inputs)


@frozen
class Machine:
    """Accelerators in one machine, in operations and bytes a second, all at the assumed `share` of the peak."""

    accelerators: int
    single: float
    double: float
    network: float
    disk: float
    memory: float
    launch: float
    share: float


H100 = Machine(8, single=67e12, double=34e12, network=50e9, disk=8 * 3e9, memory=2e12, launch=100e-6, share=0.5)
LLAMA = Network(8192, 28672, 80, 64, 8, 128256)
LENGTH, SAMPLES = 2048, 128


def seconds(work: Work, machine: Machine) -> float:
    """Return the time of one accelerator: matrix products at their share of the peak, and the launches of columns."""
    return (work.single / machine.single + work.double / machine.double) / machine.share + work.columns * machine.launch


def rows(net: Network = LLAMA, machine: Machine = H100) -> list[tuple[str, str, str]]:
    """Return (what, time on 8 accelerators, time of 10^9 tokens on 64 machines); what does not fit has the memory it needs."""
    tokens = (LENGTH * SAMPLES / machine.accelerators, 10**9 / (64 * machine.accelerators))
    a_pass = [seconds(forward(net, t, LENGTH), machine) for t in tokens]
    # In float32, written and read by all processes of a machine.
    kept = [2 * 4 * t * net.width * net.depth * machine.accelerators / machine.disk for t in tokens]
    nearest = [
        ("read the checkpoint, bfloat16", [2 * net.parameters / machine.disk] * 2),
        ("`calibrate`: a pass", a_pass),
        ("inputs of the next layer: a pass", a_pass),
        ("inputs of the next layer: to disk and back", kept),
        ("write the weights, 4 bits and a scale in 16 for 128", [(0.5 + 2 / 128) * net.parameters / machine.disk] * 2),
    ]
    rounded = [
        ("`gptq`: two passes", [2 * t for t in a_pass]),
        ("`gptq`: sums of H and C", [seconds(moments(net, t), machine) for t in tokens]),
        ("`gptq`: H and C between processes", [sent(net) / (machine.network * machine.share)] * 2),
        ("`gptq`: rounding, on each rank", [seconds(rounding(net), machine)] * 2),
        ("inputs in the quantized network: a pass, disk", [a + b for a, b in zip(a_pass, kept, strict=True)]),
    ]
    totals = [
        (name, [sum(times[i] for _, times in lines) for i in (0, 1)])
        for name, lines in (("all, rounded to nearest", nearest), ("all, with `gptq`", nearest + rounded))
    ]
    # gptq keeps the values that later ops read, of both networks; the widest are between the feed-forward layers.
    values = [2 * 4 * t * net.inner * machine.accelerators for t in tokens]
    lines = [(name, *map(spoken, times)) for name, times in [*nearest, totals[0]]]
    for name, times in [*rounded, totals[1]]:
        few, many = (spoken(t) if v <= machine.memory else f"{v / 1e12:.1f} TB" for t, v in zip(times, values, strict=True))
        lines.append((name, few, many))
    return lines


def spoken(time: float) -> str:
    """Return a time with two digits.

    >>> spoken(5.5), spoken(600), spoken(40000)
    ('5.5 s', '10 min', '11 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if time >= 2 * size:
            return f"{_digits(time / size)} {unit}"
    return f"{_digits(time)} s"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


MARK = "<!-- generated by benchmarks/{}.py -->"


def markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    cells = [head, ("---",) * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def table() -> str:
    """Return the table of the page."""
    name = f"Llama-3-70B, {LLAMA.parameters / 1e9:.1f} * 10^9 weights"
    return markdown((name, f"{LENGTH * SAMPLES:,} tokens, 8 GPUs", "10^9 tokens, 64 machines of 8 GPUs"), rows())


def write(page: Path, name: str, text: str) -> None:
    """Replace what is between the two marks of a script."""
    mark, content = MARK.format(name), page.read_text()
    before, _, after = content.split(mark)
    page.write_text(f"{before}{mark}\n\n{text}\n{mark}{after}")


def main() -> None:
    """Print the table, or write it to a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the Markdown file whose table is replaced")
    options = parser.parse_args()
    print(table())
    if options.page:
        write(options.page, "cost", table())


if __name__ == "__main__":
    main()
