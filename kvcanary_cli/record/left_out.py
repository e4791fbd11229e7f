"""What recordings of several engines leave out, in the words of the header's ``not_recorded``."""

from __future__ import annotations

#: Names of types of KV that is kept with scales begin so.
_QUANTIZED = ("fp8", "fp4", "nvfp4", "mxfp", "int8", "int4")


def scales_of(kv_dtype: object) -> list[str]:
    """The scales of a cache whose elements have the type ``kv_dtype``, if it has any."""
    name = str(kv_dtype or "").rpartition(".")[2]
    return [f"scales of the quantized KV ({name})"] if name.startswith(_QUANTIZED) else []
