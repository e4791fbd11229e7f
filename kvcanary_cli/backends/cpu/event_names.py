"""Helpers of the event kernel: requests, and their codes in the ledger (``ledger.Names``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Columns, Request, State
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i64

_FIELDS = len(Request)
_CODE = int(Request.LEDGER_CODE)
_REQUESTS, _NEXT_CODE, _NAMED, _NAMED_COUNT = constants(
    State.REQUESTS, State.NEXT_CODE, State.NAMED, State.NAMED_COUNT
)
_C_REQ_OF = int(Columns.REQ_OF)


@helper
def facts_of(state, req):  # type: ignore[no-untyped-def]
    """Address of what is known of a request."""
    return load_i64(state, _REQUESTS) + req * _FIELDS * 8


@helper
def named(columns, column, at):  # type: ignore[no-untyped-def]
    """Request that row ``at`` of a column of strings names; -1 = none."""
    string = load_i32(load_i64(columns, column), at)
    if string < 0:
        return -1
    return load_i64(load_i64(columns, _C_REQ_OF), string)


@helper
def lacks_names(state, count):  # type: ignore[no-untyped-def]
    """Whether there is no room for ``count`` names that the ledger does not know."""
    return load_i64(state, _NAMED_COUNT) + count > LIST_ROOM


@helper
def code_of(state, req):  # type: ignore[no-untyped-def]
    """Code of a request in the ledger; a new one if it has none, for which there is room."""
    facts = facts_of(state, req)
    code = load_i64(facts, _CODE)
    if code < 0:
        code, count = load_i64(state, _NEXT_CODE), load_i64(state, _NAMED_COUNT)
        store_i64(facts, _CODE, code)
        store_i64(load_i64(state, _NAMED), count, req)
        store_i64(state, _NEXT_CODE, code + 1)
        store_i64(state, _NAMED_COUNT, count + 1)
    return code
