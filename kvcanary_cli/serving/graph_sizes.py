"""Which batch sizes and token counts get a graph, by version (SPEC_SERVING_ARGS 2.3, 2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.versions import Release

GENERATED_FROM_MAXIMUM: Release = (0, 5, 3)
"""Since here the list is generated from the maximum; before, a fixed list was cut."""

_MAXIMUM_APPENDED: Release = (0, 5, 10)

# A list with padding disabled holds every size, so a wild maximum would fill memory.
_MAX_LISTED = 1 << 20


def _spread(*parts: tuple[int, int, int]) -> list[int]:
    """Sizes from (first, last, step) parts, both ends included."""
    return [size for first, last, step in parts for size in range(first, last + 1, step)]


def decode_sizes(
    release: Release,
    *,
    max_bs: int | None,
    speculation: bool,
    padding_disabled: bool = False,
    memory_mib: int | None = None,
    hip: bool = False,
) -> list[int]:
    """Decode batch sizes before they are cut at the request pool.

    Args:
        release: Version of the rules.
        max_bs: G; None = not given, which only versions before 0.5.3 leave open.
        speculation: Speculative decoding is on.
        padding_disabled: ``--disable-cuda-graph-padding``.
        memory_mib: memory.total in MiB or None; versions before 0.5.3 add sizes for large GPUs.
        hip: ROCm; versions before 0.4.5 add sizes there.

    Returns:
        Sizes, ascending; empty for a maximum below 1.
    """
    if max_bs is not None and max_bs < 1:
        return []
    if release >= GENERATED_FROM_MAXIMUM and max_bs is not None:
        sizes = _generated(min(max_bs, _MAX_LISTED), speculation, padding_disabled)
        if release < (0, 5, 5) and speculation and not padding_disabled:
            sizes = [size for size in sizes if size != 64]
        if release >= _MAXIMUM_APPENDED and sizes[-1] != max_bs <= _MAX_LISTED:
            sizes.append(max_bs)
        return sizes
    sizes = _fixed(release, speculation, padding_disabled, memory_mib or 0, hip)
    if max_bs is None:
        return sizes
    if release >= (0, 4, 6) and max_bs > sizes[-1]:
        sizes += range(sizes[-1] + 16, min(max_bs, _MAX_LISTED) + 1, 16)
    return [size for size in sizes if size <= max_bs]


def _generated(max_bs: int, speculation: bool, padding_disabled: bool) -> list[int]:
    if padding_disabled:
        return list(range(1, max_bs + 1))
    if speculation:
        sizes = _spread((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, max_bs, 16))
    else:
        sizes = [1, 2, 4, 8, 12]
        sizes += _spread((16, 256, 8), (272, 496, 16), (512, max_bs, 32))
    return [size for size in sizes if size <= max_bs]


def _fixed(
    release: Release, speculation: bool, padding_disabled: bool, memory_mib: int, hip: bool
) -> list[int]:
    if padding_disabled:
        if release < (0, 4, 4):
            return [*range(1, 33), 64, 96, 128, 160]
        return [*range(1, 33), *range(40 if release < (0, 4, 7) else 48, 161, 16)]
    sizes = set(_fixed_base(release, speculation))
    if hip and release < (0, 4, 5):
        sizes.update(range(160, 257, 8))
    threshold = _large_gpu_mib(release)
    if threshold is not None and memory_mib > threshold:
        sizes.update(range(160, 257, 8))
    if release >= (0, 4, 7) and memory_mib > 160000:
        sizes.update(range(256, 513, 16))
    return sorted(sizes)


def _fixed_base(release: Release, speculation: bool) -> list[int]:
    if not speculation:
        return [1, 2, 4, *range(8, 161, 8)]
    if release < (0, 4, 4):
        return list(range(1, 33))
    if release < (0, 4, 7):
        return _spread((1, 8, 1), (10, 32, 2), (40, 160, 16))
    return _spread((1, 8, 1), (10, 32, 2), (40, 56, 8), (80, 160, 16))


def _large_gpu_mib(release: Release) -> int | None:
    """Memory above which 160 to 256 are added; None if the version adds none."""
    if release < (0, 4, 5):
        return None
    if release < (0, 4, 6):
        return 81920
    return 96 * 1024 if release < (0, 4, 7) else 90 * 1024


def cut_at_pool(
    release: Release, sizes: Sequence[int], pool_size: int, *, alignment: int = 1
) -> list[int]:
    """Sizes that are captured at run time, where the request pool is the limit.

    Args:
        release: Version of the rules.
        sizes: From ``decode_sizes`` or from an explicit list.
        pool_size: R, requests per worker.
        alignment: Attention TP size when buffers are gathered, twice that with two-batch overlap.

    Returns:
        Sizes, ascending, multiples of the alignment, none above the (rounded) pool size.
    """
    kept = set(sizes)
    limit = -(-pool_size // alignment) * alignment
    if kept and max(kept) > limit:
        kept.add(limit)
        if release < (0, 4, 7):
            kept.add(limit - 1)
    return sorted(size for size in kept if 0 < size <= limit and size % alignment == 0)


def prefill_sizes(release: Release, max_tokens: int) -> list[int]:
    """Token counts of prefill graphs up to ``max_tokens``, which is not appended."""
    if max_tokens < 1:
        return []
    top = min(max_tokens, _MAX_LISTED)
    head = ((4, 32, 4), (48, 256, 16), (288, 512, 32))
    if release >= (0, 5, 9):
        sizes = _spread(*head, (576, 1024, 64), (1280, 4096, 256), (4608, top, 512))
    elif release >= (0, 5, 8):
        sizes = _spread(*head, (640, 1024, 64), (1280, 4096, 256), (4608, top, 512))
    else:
        sizes = _spread(*head, (640, 4096, 128), (4352, top, 256))
    return [size for size in sizes if size <= top]
