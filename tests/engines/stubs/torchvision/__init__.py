"""Stands in for torchvision, whose registry build does not load beside a CPU build of torch.

SGLang imports it for models that see; the tests run models that do not.
"""

from __future__ import annotations

from torchvision import io, ops, transforms

__version__ = "0.28.0"
__all__ = ["io", "ops", "transforms"]
