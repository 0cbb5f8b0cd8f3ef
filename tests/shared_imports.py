"""What tests in several processes import from torch, for the server that forks them."""

import hypothesis
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.export
import torch.nn.parallel

__all__ = ["hypothesis", "torch"]
