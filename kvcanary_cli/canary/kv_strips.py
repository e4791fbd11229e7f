"""KV bytes that have a given fingerprint, so that recorded fingerprints can be verified (2.3).

A trace carries ``real_kv_hash`` values, not KV bytes. ``mix`` is a bijection, so 16 bytes whose
fingerprint is any given value are found directly: the first word 0 folds to 0, the second is the
value, un-mixed twice. Written into a source of one 16-byte strip per slot, they make the TAIL lane
store and compare exactly the recorded values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import MIX_MULTIPLIER_1, MIX_MULTIPLIER_2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_INVERSE_1 = pow(MIX_MULTIPLIER_1, -1, 1 << 64)
_INVERSE_2 = pow(MIX_MULTIPLIER_2, -1, 1 << 64)


def _unshift(x: npt.NDArray[np.uint64], shift: int) -> npt.NDArray[np.uint64]:
    """Undo ``x ^ (x >> shift)``."""
    import numpy as np

    undone: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(shift)) ^ (x >> np.uint64(2 * shift))
    return undone


def _unmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    import numpy as np

    x = _unshift(x, 31) * np.uint64(_INVERSE_2)
    x = _unshift(x, 27) * np.uint64(_INVERSE_1)
    return _unshift(x, 30)


def strips_for_real_kv_hashes(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Bytes whose fingerprint is ``hashes``, as the only source of a launch, in PARTIAL or ALL.

    Args:
        hashes: [n] int64 bit patterns.

    Returns:
        [n, 16] uint8.
    """
    import numpy as np

    words = np.zeros((hashes.shape[0], 2), dtype="<u8")
    words[:, 1] = _unmix(_unmix(np.ascontiguousarray(hashes, dtype=np.int64).view(np.uint64)))
    return words.view(np.uint8).reshape(-1, 16)
