"""Defaults that follow from the GPU's memory: C and G (SPEC_SERVING_ARGS 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.serving.gpus import class_text

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Release

_MANY_RANKS = 4


@dataclass(frozen=True, slots=True)
class MemoryDefaults:
    """C and G of one row of the table.

    Attributes:
        chunked_prefill_size: C before the division by the DP size.
        cuda_graph_max_bs: G, or None if the fixed capture list decides (before 0.5.3).
        source: Which row it is, for people.
    """

    chunked_prefill_size: int
    cuda_graph_max_bs: int | None
    source: str


_Row = tuple[int | None, int, int | None, int | None]
"""Upper memory bound in MiB (None = no bound), C, G below four ranks, G from four ranks on."""

_UNKNOWN_CUDA = (4096, 160)

_SINCE_0520: tuple[_Row, ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (None, 16384, 512, 512),
)
_SINCE_054: tuple[_Row, ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    *_SINCE_0520[2:],
)
_IN_053: tuple[_Row, ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 16, 80),
    *_SINCE_0520[2:],
)
_SINCE_047: tuple[_Row, ...] = (
    (35 * 1024, 2048, 8, 80),
    (160 * 1024, 8192, None, None),
    (None, 16384, None, None),
)
_SINCE_045: tuple[_Row, ...] = ((25000, 2048, 8, 80), (None, 8192, None, None))
_SINCE_040: tuple[_Row, ...] = ((25000, 2048, 8, 80), (None, 8192, 160, 160))
_PD_CHUNK_046 = 16384

_NPU: tuple[_Row, ...] = ((32 * 1024, 32768, 16, 16), (64 * 1024, 32768, 64, 128))
_FIRST_WITH_NPU: Release = (0, 5, 3)


def _rows(release: Release) -> tuple[_Row, ...]:
    if release >= (0, 5, 20):
        return _SINCE_0520
    if release >= (0, 5, 4):
        return _SINCE_054
    if release >= (0, 5, 3):
        return _IN_053
    if release >= (0, 4, 7):
        return _SINCE_047
    return _SINCE_045 if release >= (0, 4, 5) else _SINCE_040


def memory_defaults(
    release: Release,
    *,
    memory_mib: int | None,
    tp_size: int,
    npu: bool = False,
    disaggregated: bool = False,
) -> MemoryDefaults:
    """C and G of a server that was given neither.

    Args:
        release: Version of the rules.
        memory_mib: memory.total in MiB; None = the server itself cannot tell (not: we do not
            know it).
        tp_size: Tensor parallel size.
        npu: Ascend; its classes are tried first.
        disaggregated: The server is a PD prefill or decode server (0.4.6 chunks more then).
    """
    ranks = f"tp {tp_size}"
    if memory_mib is None:
        unknown_bs = None if (0, 4, 5) <= release < (0, 5, 3) else 160
        return MemoryDefaults(_UNKNOWN_CUDA[0], unknown_bs, f"default: unknown memory, {ranks}")
    rows = (*_NPU, *_rows(release)) if npu and release >= _FIRST_WITH_NPU else _rows(release)
    for bound, chunk, few, many in rows:
        if bound is None or memory_mib < bound:
            if (0, 4, 6) <= release < (0, 4, 7) and disaggregated and memory_mib >= 25000:
                chunk = _PD_CHUNK_046
            return MemoryDefaults(
                chunk,
                few if tp_size < _MANY_RANKS else many,
                f"default: {class_text(memory_mib)}, {ranks}",
            )
    raise AssertionError("the last row has no bound")
