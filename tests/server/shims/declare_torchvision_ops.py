"""Lets torchvision be imported without its binary, which needs CUDA: declares its operators before it loads.

Imported by a .pth file at the start of Python; imports torch only where torchvision is imported.
"""

import importlib.abc
import sys
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        """Find nothing; at the first look for torchvision declare the operators."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for schema in _SCHEMAS:
                torch.library.define(f"torchvision::{schema.partition('(')[0]}", f"({schema.partition('(')[2]}")


sys.meta_path.insert(0, _BeforeTorchvision())
