"""Messages with generated values, for every entry of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from kvcanary_cli.catalog import Entry, catalogue

if TYPE_CHECKING:
    from kvcanary_cli.catalog.template import Piece

_NAME = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
_INT = st.integers(-(2**40), 2**63 - 1).map(str)
_WORDS = st.lists(_NAME, min_size=1, max_size=4).map(" ".join)
_HEX64 = st.integers(0, 2**64 - 1).map(lambda value: f"0x{value:016x}")
_LABELS = (
    "verify_chain_hash",
    "verify_position",
    "verify_real_kv_hash",
    "write_token",
    "write_position",
    "verify_token",
)
_KINDS = {
    "int": _INT,
    "number": st.one_of(
        st.integers(0, 9999).map(str),
        st.decimals(0, 99, places=2, allow_nan=False).map(lambda value: f"{value:.2f}"),
    ),
    "hexbyte": st.integers(0, 255).map(lambda value: f"0x{value:02X}"),
    "hex64": _HEX64,
    "upper": st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True),
    "word": st.one_of(_NAME, st.tuples(_NAME, _NAME).map(".".join)),
    "type": st.sampled_from(["torch.int64", "torch.int32"]),
    "text": _WORDS,
    "repr": _NAME.map(lambda name: f"'{name}'"),
    "tuple": st.lists(st.integers(0, 9999), max_size=3).map(lambda sizes: str(tuple(sizes))),
    "list": st.lists(_NAME, max_size=3).map(str),
    "json": st.integers(0, 9999).map(lambda number: f'{{"forward_ct":{number}}}'),
    "labels": st.lists(st.sampled_from(_LABELS), min_size=1, max_size=3, unique=True).map("+".join),
    "canary variable": st.sampled_from(
        ["SGLANG_KV_CANARY_RING_CAPACITY", "SGLANG_KV_CANARY_ENABLE_MHA_V"]
    ),
    "target tail": st.sampled_from(["", " when real_kv_used perturbation is enabled"]),
}


def value_of(piece: Piece) -> st.SearchStrategy[str]:
    """Values for a placeholder, as they stand in a message."""
    kind = piece.kind or ""
    if kind.startswith("one of "):
        return st.sampled_from(kind.removeprefix("one of ").split("|"))
    if kind.startswith("labels with "):
        own = kind.removeprefix("labels with ")
        others = st.lists(
            st.sampled_from([label for label in _LABELS if label != own]), max_size=2, unique=True
        )
        return st.tuples(others, others).map(lambda pair: "+".join([*pair[0], own, *pair[1]]))
    return _KINDS[kind]


@st.composite
def message_of(draw: st.DrawFn, entry: Entry) -> tuple[str, dict[str, str]]:
    """A text of ``entry`` and the values in it, without the quotes of a repr."""
    text, values = "", {}
    for piece in entry.matcher.pieces:
        if piece.kind is None:
            text += piece.text
            continue
        value = draw(value_of(piece))
        text += value
        values[piece.text] = value.strip("'") if piece.kind == "repr" else value.strip()
    return text, values


# Each violation label is part of a KVC-V00 line too; alone it is explained as itself.
SEARCHABLE = [entry for entry in catalogue().values() if not entry.whole]
