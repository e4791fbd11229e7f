"""GPU memory as the server's defaults see it: memory.total in MiB (SPEC_SERVING_ARGS 2.1)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB_BY_GPU: Mapping[str, int] = {
    "t4": 15360,
    "v100-16gb": 16384,
    "v100": 32768,
    "l4": 23034,
    "a10": 23028,
    "a10g": 23028,
    "a30": 24576,
    "rtx3090": 24576,
    "rtx4090": 24564,
    "rtx5090": 32607,
    "rtx6000ada": 49140,
    "rtxa6000": 49140,
    "rtxpro6000": 97887,
    "a40": 46068,
    "l40": 46068,
    "l40s": 46068,
    "a100-40gb": 40960,
    "a100": 81920,
    "a800": 81920,
    "h100": 81559,
    "h800": 81559,
    "h100nvl": 95830,
    "h20": 97871,
    "h20-3e": 143771,
    "gh200": 97871,
    "h200": 143771,
    "b200": 183359,
    "gb200": 189471,
    "b300": 275040,
    "gb300": 284208,
    "mi300x": 196592,
    "mi325x": 262128,
    "mi355x": 294896,
}
"""memory.total by product, lower case and without spaces."""

# The driver keeps a part of the nominal size for itself, so a size class stands for the product
# that most servers of that class have.
_MIB_BY_CLASS: Mapping[int, tuple[int, str]] = {
    16: (15360, "T4"),
    24: (24564, "RTX 4090"),
    32: (32607, "RTX 5090"),
    40: (40960, "A100 40 GB"),
    48: (46068, "L40S; an RTX 6000 Ada prints 49140"),
    80: (81559, "H100 80 GB"),
    96: (97871, "H20"),
    141: (143771, "H200"),
    180: (183359, "B200"),
    192: (183359, "B200; an MI300X prints 196592"),
}

_HOPPER = ("h100", "h800", "h20", "gh200", "h200")
_HIP = ("mi300x", "mi325x", "mi355x")
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(mib|mb|m|gib|gb|g)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU's memory.

    Attributes:
        mib: memory.total in MiB.
        text: What was taken for what: ``80 GB class taken as 81559 MiB (H100 80 GB)``.
        exact: False if the number stands for a class and another product of it differs a little.
    """

    mib: int
    text: str
    exact: bool


def gpu_key(name: str) -> str | None:
    """``NVIDIA H100 80GB HBM3`` or ``rtx 5090`` as a key of ``MIB_BY_GPU``, or None."""
    plain = re.sub(r"nvidia|amd|geforce|instinct|tesla|generation|\s|_", "", name.strip().lower())
    if plain in MIB_BY_GPU:
        return plain
    dense = plain.replace("-", "")
    size = re.search(r"\d+gb", plain)
    # The longest key wins: "h200" is no "h20", "rtx6000ada" no "rtxa6000".
    for key in sorted(MIB_BY_GPU, key=len, reverse=True):
        if dense == key.replace("-", "") or plain.startswith(
            (f"{key}-", f"{key}80gb", f"{key}pcie")
        ):
            sized = f"{key}-{size[0]}" if size else key
            return sized if sized in MIB_BY_GPU else key
    return None


def memory_of_gpu(name: str) -> GpuMemory:
    """Memory of a product by name.

    Raises:
        UsageError: The name is not known.
    """
    key = gpu_key(name)
    if key is None:
        close = difflib.get_close_matches(name.lower().strip(), MIB_BY_GPU, n=3, cutoff=0.5)
        known = ", ".join(close) if close else ", ".join(sorted(MIB_BY_GPU))
        raise UsageError(
            f"GPU {name.strip()[:40]!r} is not known",
            hint=f"known: {known}; or give the size with --gpu-mem, as nvidia-smi prints it",
        )
    mib = MIB_BY_GPU[key]
    return GpuMemory(mib, f"{key}: {mib} MiB", exact=True)


def parse_gpu_memory(text: str) -> GpuMemory:
    """Memory from ``81559MiB``, ``81559``, ``80GB``, ``80g``, ``141GB``.

    A plain number of at least 1000 is MiB. A size in GB is a class: what nvidia-smi prints for the
    usual product of that class. GiB are taken literally.

    Raises:
        UsageError: Not a size, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    amount = float(match[1]) if match else 0.0
    if match is None or amount <= 0:
        raise UsageError(
            f"{text.strip()[:40]!r} is not a memory size",
            hint="write it as nvidia-smi prints it (81559MiB), or as a class (80GB)",
        )
    unit = (match[2] or "").lower()
    if unit in ("mib", "mb", "m") or (not unit and amount >= 1000):
        return GpuMemory(int(amount), f"{int(amount)} MiB", exact=True)
    if unit == "gib":
        return GpuMemory(int(amount * 1024), f"{int(amount * 1024)} MiB", exact=True)
    known = _MIB_BY_CLASS.get(int(amount)) if amount == int(amount) else None
    if known is not None:
        mib, product = known
        return GpuMemory(mib, f"{int(amount)} GB class taken as {mib} MiB ({product})", exact=False)
    mib = int(amount * 1024)
    return GpuMemory(
        mib, f"{amount:g} GB taken as {mib} MiB, for want of a known product", exact=False
    )


def class_text(mib: int) -> str:
    """``80 GB class`` for 81559: how a size is named in sources."""
    return f"{round(mib / 1024):d} GB class"


def is_hopper(name: str) -> bool:
    """The product is of compute capability 9."""
    return gpu_key(name) in _HOPPER


def is_hip(name: str) -> bool:
    """The product runs ROCm."""
    return gpu_key(name) in _HIP
