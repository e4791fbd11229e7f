"""kvcanary: an offline diagnostic for corruption of the KV cache in LLM serving."""

from __future__ import annotations

__version__ = "0.1.0"
