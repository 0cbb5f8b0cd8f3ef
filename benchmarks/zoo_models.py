"""The networks of zoo.py: constructors and inputs.  Weights are random and seeded; nothing is downloaded.

If a network has norms, BatchNorms get random scales of 1/2 to 1 and shifts of 2 to 3.  Each bias of a convolution or a linear
shifts by 2 to 3 times the standard deviation of the values to which it is added.  With their initial values (1, 0 and about 0),
deep networks are chaotic: each layer increases the relative difference between two inputs (Yang et al., A Mean Field Theory of
Batch Normalization, arXiv:1902.08129).  Rounding increases a small difference further: a difference of d codes, with d much
less than 1, flips a share of d of the codes by a whole code.  Suppose that one code in 50,000 rounds differently in the first
layers, because floats were added in another order.  This changes a tenth of the codes twenty layers later.  Training takes
networks out of that state.  To show that the signal survives, the table has the similarity of the outputs for two images.

Layers with zero weights also get random ones, because otherwise every output of such a head would be right.  These weights are
normal.  Scales of whole branches that are 0.01 or less (LayerScale) become 1/2 to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn
from torchvision_ops import shim

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


@frozen
class Entry:
    """One network: its name `package:model`, input size in pixels, True if convolutional, model arguments."""

    name: str
    pixels: int
    convolutional: bool
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def package(self) -> str:
        """Return torchvision, timm, transformers or own."""
        return self.name.partition(":")[0]

    def make(self) -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics from random images."""
        torch.manual_seed(0)
        word, given = self.name.partition(":")[2], dict(self.arguments)
        return settled(_MAKERS[self.package](word, given).eval(), self.inputs)

    def inputs(self, batch: int, seed: int) -> tuple[Tensor, ...]:
        """Return the positional inputs of one call."""
        generator = torch.Generator().manual_seed(seed)
        if self.package == "transformers":
            from zoo_transformers import inputs

            return inputs(self.name.partition(":")[2], batch, generator)
        return (images(batch, self.pixels, generator),)


def images(batch: int, pixels: int, generator: torch.Generator) -> Tensor:
    """Return smooth random images of different colours, with some noise.  To a network, all white noise is alike."""
    colour = torch.randn(batch, 3, 1, 1, generator=generator)
    coarse = torch.randn(batch, 3, 5, 5, generator=generator)
    fine = torch.randn(batch, 3, pixels, pixels, generator=generator)
    smooth = F.interpolate(coarse, size=(pixels, pixels), mode="bicubic", align_corners=True)
    return colour + smooth + 0.2 * fine


def settled(model: nn.Module, inputs: Callable[[int, int], tuple[Tensor, ...]]) -> nn.Module:
    """Return the model with the scales and shifts described above, and BatchNorm statistics (frozen, too) from random images.

    A BatchNorm with only a few values per channel (of pooled features) keeps its initial statistics.
    """
    generator = torch.Generator().manual_seed(0)
    _awaken(model, generator)
    shifted = set()

    def settle(norm: Any, given: tuple[Tensor, ...]) -> None:
        x = given[0].transpose(0, 1).flatten(1)
        if x.shape[1] >= 64:
            norm.running_mean.copy_(x.mean(1))
            norm.running_var.copy_(x.var(1))

    def shift(layer: Any, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if layer in shifted:
            return out
        shifted.add(layer)
        more = (torch.rand(layer.bias.shape, generator=generator) + 2) * out.std()
        layer.bias.data.add_(more)
        return out + (more if isinstance(layer, nn.Linear) else more.reshape(-1, *[1] * (layer.weight.ndim - 2)))

    norms: list[Any] = [m for m in model.modules() if getattr(m, "running_mean", None) is not None]
    for norm in norms:
        if norm.weight is not None:
            norm.weight.data.copy_(torch.rand(norm.weight.shape, generator=generator) / 2 + 0.5)
            norm.bias.data.copy_(torch.rand(norm.weight.shape, generator=generator) + 2)
    layers = [m for m in model.modules() if isinstance(m, _LAYERS) and m.bias is not None]
    normed = any("Norm" in type(m).__name__ for m in model.modules())
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    hooks += [layer.register_forward_hook(shift) for layer in layers if normed]
    with torch.no_grad():
        if hooks:
            model(*inputs(16, 1))
    for hook in hooks:
        hook.remove()
    return model


def _awaken(model: nn.Module, generator: torch.Generator) -> None:
    for layer in model.modules():
        if isinstance(layer, _LAYERS) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02, generator=generator)
    for name, scale in model.named_parameters():
        small = (
            name.rpartition(".")[2] not in ("bias", "beta")
            and scale.numel() == max(scale.shape, default=0) > 1
            and scale.abs().max() <= 0.01
        )
        if small and bool((scale == scale.flatten()[0]).all()):
            scale.data.copy_(torch.rand(scale.shape, generator=generator) / 2 + 0.5)


def _torchvision(name: str, given: dict[str, Any]) -> nn.Module:
    shim()
    import torchvision

    if name == "fpn_resnet18":
        return torchvision.models.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    space = torchvision.models.segmentation if hasattr(torchvision.models.segmentation, name) else torchvision.models
    weights = {"weights": None} | ({"weights_backbone": None} if space is torchvision.models.segmentation else {})
    made: nn.Module = getattr(space, name)(**weights, **given)
    return made


def _timm(name: str, given: dict[str, Any]) -> nn.Module:
    shim()
    import timm

    made: nn.Module = timm.create_model(name, pretrained=False, **given)
    return made


def _transformers(name: str, given: dict[str, Any]) -> nn.Module:
    import zoo_transformers

    return zoo_transformers.make(name)


def _own(name: str, given: dict[str, Any]) -> nn.Module:
    import zoo_own

    made: nn.Module = getattr(zoo_own, name)(**given)
    return made


_MAKERS: dict[str, Callable[[str, dict[str, Any]], nn.Module]] = {
    "torchvision": _torchvision, "timm": _timm, "transformers": _transformers, "own": _own,
}  # fmt: skip


def _entries(package: str, convolutional: bool, words: str, **arguments: Any) -> list[Entry]:
    # "name@pixels"; the default is 96 pixels.
    parts = [w.partition("@") for w in words.split()]
    return [Entry(f"{package}:{n}", int(size or 96), convolutional, tuple(arguments.items())) for n, _, size in parts]


_TEN = {"num_classes": 10}

ZOO: tuple[Entry, ...] = (
    # the fourteen networks of MQBench's test_model.py
    *_entries("torchvision", True, "alexnet@224 densenet121 mnasnet0_5 mobilenet_v2 resnet18 resnext50_32x4d", **_TEN),
    *_entries("torchvision", True, "shufflenet_v2_x0_5 squeezenet1_0 vgg11@224 vgg11_bn@224 wide_resnet50_2", **_TEN),
    *_entries("torchvision", True, "regnet_x_400mf", **_TEN),
    *_entries("torchvision", True, "deeplabv3_resnet50 fcn_resnet50"),
    # older and newer networks
    *_entries("torchvision", True, "resnet50 mobilenet_v3_small@128 mobilenet_v3_large@128 regnet_x_3_2gf", **_TEN),
    *_entries("torchvision", True, "regnet_y_400mf efficientnet_b0@128 squeezenet1_1 convnext_tiny", **_TEN),
    *_entries("torchvision", True, "googlenet@128 inception_v3@128", init_weights=False, **_TEN),
    *_entries("torchvision", True, "deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large fpn_resnet18"),
    *_entries("timm", True, "resnet18d resnet26t res2net50_14w_8s resnest14d legacy_seresnet18 dla34", **_TEN),
    *_entries("timm", True, "xception41 inception_v4@128 ghostnet_100 ghostnetv2_100 repvgg_a0 hrnet_w18_small", **_TEN),
    *_entries("timm", True, "mobilenetv1_100 mobilenetv4_conv_small efficientnet_lite0 tf_efficientnet_b0", **_TEN),
    *_entries("timm", True, "efficientnetv2_rw_t mixnet_s", **_TEN),
    *_entries("timm", True, "convnextv2_atto convnext_atto poolformer_s12 dpn48b skresnet18 darknet53", **_TEN),
    *_entries("timm", True, "fbnetc_100 regnety_002 nf_resnet26 ese_vovnet19b_slim selecsls42b rexnet_100", **_TEN),
    *_entries("timm", True, "hardcorenas_a@160 lcnet_050 mobileone_s0 fastvit_t8@128 inception_next_atto", **_TEN),
    *_entries("timm", True, "starnet_s1 repghostnet_050", **_TEN),
    *_entries("own", True, "UNet YoloLike SsdLike UNet3d"),
    # attention, mixers
    *_entries("torchvision", False, "vit_b_16@224 swin_t@112 swin_v2_t@128 maxvit_t@224", **_TEN),
    *_entries("timm", False, "vit_tiny_patch16_224@224 deit_tiny_patch16_224@224 swin_tiny_patch4_window7_224@224", **_TEN),
    *_entries("timm", False, "cait_xxs24_224@224 mixer_s32_224@224 resmlp_12_224@224 gmlp_ti16_224@224", **_TEN),
    *_entries("timm", False, "efficientvit_b0 mobilevit_xxs@128 mobilevitv2_050@128 edgenext_xx_small@128", **_TEN),
    *_entries("timm", False, "levit_conv_128s@224 xcit_nano_12_p16_224@224 pvt_v2_b0@224", **_TEN),
    *_entries("own", False, "DetrLike@64"),
    *_entries("transformers", False, "bert distilbert electra roberta mobilebert gpt2 llama qwen2 qwen3 mistral"),
    *_entries("transformers", False, "gemma t5_encoder whisper_encoder wav2vec2 clip_vision vit detr segformer"),
    *_entries("transformers", False, "albert deberta_v2"),
)  # fmt: skip
