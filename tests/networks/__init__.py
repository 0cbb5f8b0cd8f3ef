"""Networks of the field, narrow, with torchvision's module names and forward passes, for tests of placement."""

from networks.mobilenet import MobileNetV2
from networks.resnet import ResNet18
from networks.squeezenet import SqueezeNet

NETWORKS = {"resnet18": ResNet18, "mobilenet_v2": MobileNetV2, "squeezenet1_0": SqueezeNet}

__all__ = ["NETWORKS", "MobileNetV2", "ResNet18", "SqueezeNet"]
