"""What follows from the numbers of one message: computed values, and remarks in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, ForwardMode, LaunchTag
from kvcanary_cli.serving.graph_sizes import decode_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcanary_cli.catalog.entry import Entry

_RULES = (0, 5, 23)
_KV_UNIT_BYTES = 16
_PHASES = (
    "idle",
    "prepared on the host",
    "after the operations before the model",
    "after the operations behind the model",
)
# What the example fixes raise a small maximum to; the remedies name the least that is enough.
_ROOMY_BATCH = 64
# The widest batch for which a list of sizes is built; a pasted number may be anything.
_WIDEST_BATCH = 1 << 16
_READ_BYTES = {"0": "none", "16": "partial", "9223372036854775807": "all"}
_ZERO_HASH = "0x0000000000000000"
_WRITE_LABELS = {"write_token", "write_position"}

Values = dict[str, str]


def captured_size(batch_size: int, *, speculation: bool = False) -> int:
    """The smallest decode batch size that gets a graph by default and covers ``batch_size``."""
    if not 0 < batch_size <= _WIDEST_BATCH:
        return batch_size
    sizes = decode_sizes(_RULES, max_bs=batch_size + 64, speculation=speculation)
    return next(size for size in sizes if size >= batch_size)


def _batch(fields: Mapping[str, str]) -> Values:
    size = int(fields["bs"])
    captured = captured_size(size)
    values = {"captured": str(captured), "roomy": str(max(_ROOMY_BATCH, captured))}
    if "cap" in fields:
        values["over"] = str(size - int(fields["cap"]))
    return values


def _plan_rows(fields: Mapping[str, str]) -> Values:
    return {"over": str(int(fields["bs"]) - int(fields.get("limit", PLAN_ROWS_LIMIT)))}


def _bytes_per_token(fields: Mapping[str, str]) -> Values:
    got = int(fields["got"])
    return {"below": str(got - got % _KV_UNIT_BYTES), "rest": str(got % _KV_UNIT_BYTES)}


def _scatter(fields: Mapping[str, str]) -> Values:
    return {"reqs": str(int(fields["n"]) - 1), "most": str(int(fields["limit"]) - 1)}


def _phases(fields: Mapping[str, str]) -> Values:
    def name(text: str) -> str:
        digits = text.strip()
        if digits.isdecimal() and int(digits) < len(_PHASES):
            return _PHASES[int(digits)]
        return "no phase"

    return {"expect_name": name(fields["expect"]), "actual_name": name(fields["actual"])}


def _mode(fields: Mapping[str, str]) -> Values:
    text = fields["mode"]
    names = {str(int(mode)): mode.name for mode in ForwardMode}
    return {"mode_name": f" ({names[text]})" if text in names else ""}


def _read_bytes(fields: Mapping[str, str]) -> Values:
    word = _READ_BYTES.get(fields["rb"])
    return {"rb_name": f" ({word})" if word else ""}


def _aux(fields: Mapping[str, str]) -> Values:
    if "expected_aux" not in fields:
        return {}
    number = int(fields["expected_aux"], 16)
    return {"aux_number": str(number - (1 << 64) if number >> 63 else number)}


_COMPUTED: Mapping[str, Callable[[Mapping[str, str]], Values]] = {
    "KVC-B03": _batch,
    "KVC-B05": _batch,
    "KVC-Z02": _batch,
    "KVC-C02": _plan_rows,
    "KVC-S02": _bytes_per_token,
    "KVC-E06": _scatter,
    "KVC-R10": _phases,
    "KVC-R11": _mode,
    "KVC-L02": _read_bytes,
    "KVC-V05": _aux,
}


def values_of(entry: Entry, fields: Mapping[str, str]) -> Values:
    """All values that the entry's texts may use: its own words, the message's, computed ones.

    Args:
        entry: The entry.
        fields: Values of a message; some may be missing if it was cut short.
    """
    values = {**entry.values, **fields}
    compute = _COMPUTED.get(entry.code)
    if compute is None or not fields:
        return values
    try:
        values.update(compute(fields))
    except (KeyError, ValueError):
        # A message cut short lacks the numbers; its texts then go without what follows from them.
        return values
    return values


def violation_remarks(fields: Mapping[str, str]) -> list[str]:
    """What the fields of a frozen violation line say, in words."""
    remarks = []
    tag = fields.get("launch_tag", "")
    if tag in LaunchTag.__members__:
        when, half, pool = tag.split("_")
        place = {
            "HEAD": "before the model ran",
            "TAIL": "after the model ran",
            "SWEEP": "in a sweep of the prefix cache",
        }[when]
        kind = "full" if pool == "FULL" else "sliding-window"
        remarks.append(f"{tag}: found {place}, in the {half} rows of the {kind} pool.")
    is_write = bool(_WRITE_LABELS & set(fields.get("fail_reason", "").split("+")))
    if is_write and fields.get("expected_aux"):
        expected = _aux(fields)["aux_number"]
        remarks.append(f"Position {fields['position']} was written; {expected} was expected.")
    elif (fields.get("stored_token"), fields.get("position"), fields.get("stored_chain_hash")) == (
        "0",
        "0",
        _ZERO_HASH,
    ):
        remarks.append("Token, position and hash are all zero: the slot was never written.")
    elif fields.get("expected_token") == "-1":
        remarks.append("No token was compared: the verify-token assert is off, or in a sweep.")
    return remarks
