"""Values that no server of a version takes: misspelt ones, and those that were removed.

Which values an option takes grows from version to version, so a value outside the lists here is
refused for certain only where the list is closed (``option_facts.CHOICES``); otherwise the start is
perhaps refused, and the report says so.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.kv_cell import KNOWN_KV_DTYPES
from kvcanary_cli.serving.option_facts import GRAPH_BACKENDS
from kvcanary_cli.serving.options import spelling_of
from kvcanary_cli.serving.values import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.serving.resolve_state import State
    from kvcanary_cli.serving.values import Given

KNOWN_ALGORITHMS = frozenset(
    {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "LOOKAHEAD", "MTP"}
)
"""Algorithms of any version that was read, aliases resolved."""

REMOVED_COMPILED_GRAPH: tuple[int, int, int] = (0, 5, 22)
"""First version without the ``tc_piecewise`` prefill graph."""

_COMPILED = ("piecewise", "tc_piecewise")
_PHASE_KEYS = {
    "decode": ("backend", "max_bs", "bs"),
    "prefill": (
        "backend",
        "max_bs",
        "bs",
        "max_context_size",
        "max_seq_len",
        "full_prefill_max_req",
    ),
}


def refuse_unlisted(state: State, name: str, value: str, known: Iterable[str]) -> None:
    """Add a refusal, not a certain one, for an option's value that no version read has.

    Args:
        state: The resolution; what a running server states is taken as it is.
        name: Canonical name of the option.
        value: Its value in the spelling of ``known``.
        known: Values of all versions.
    """
    item = state.stated(name)
    names = sorted(known)
    if item is None or item.kind not in ("argument", "override") or value in names:
        return
    option = spelling_of(name, str(state.choice.rules)) or f"--{name.replace('_', '-')}"
    close = difflib.get_close_matches(value[:60], names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    state.refuse(
        Refusal(
            "",
            f"argument {option}: invalid choice: {item.value!r:.60}",
            f"{item.source}: no version that was read has it",
            f"{meant}known values are {', '.join(names)}",
            certain=False,
        )
    )


def check_kv_dtype(state: State) -> None:
    """Say so if ``--kv-cache-dtype`` is none of the known types."""
    value = state.text("kv_cache_dtype").lower()
    if value:
        refuse_unlisted(state, "kv_cache_dtype", value, KNOWN_KV_DTYPES)


def check_graph_config(state: State) -> None:
    """Keys and back ends of ``--cuda-graph-config`` that a server would not take.

    Raises:
        InputError: A phase that is none, or a back end that is none.
    """
    item = state.stated("cuda_graph_config")
    if item is None or not isinstance(item.value, dict) or item.kind == "resolved":
        return
    for phase, part in item.value.items():
        if phase not in _PHASE_KEYS:
            raise _bad_key(item, phase, tuple(_PHASE_KEYS), "phase")
        if not isinstance(part, dict):
            continue
        _check_phase(state, item, phase, part)


def _check_phase(state: State, item: Given, phase: str, part: dict[str, Any]) -> None:
    known = _PHASE_KEYS[phase]
    for key in part:
        if key in known:
            continue
        close = difflib.get_close_matches(str(key)[:60], known, n=1, cutoff=0.7)
        if close:
            raise _bad_key(item, f"{phase}.{key}", (f"{phase}.{close[0]}",), "key")
        state.remark(
            f"{item.name}: the key {phase}.{str(key)[:60]} is not known and is left out of account",
            item,
        )
    backend = part.get("backend")
    if backend is not None and (
        not isinstance(backend, str) or backend.lower() not in GRAPH_BACKENDS
    ):
        raise InputError(
            f"{item.source}: {item.name}: {phase}.backend is {backend!r:.60}",
            hint=f"known back ends are {', '.join(GRAPH_BACKENDS)}",
        )


def _bad_key(item: Given, key: Any, known: tuple[str, ...], what: str) -> InputError:
    close = difflib.get_close_matches(str(key)[:60], known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return InputError(f"{item.source}: {item.name} has no {what} {str(key)[:60]!r}", hint=hint)


def refuse_removed_graph(state: State) -> None:
    """Refuse ``tc_piecewise`` where it was removed (1.4)."""
    backend = state.get("prefill_graph_backend")
    if state.release < REMOVED_COMPILED_GRAPH or backend not in _COMPILED:
        return
    state.refuse(
        Refusal(
            "",
            "tc_piecewise was removed; select breakable, full, or disabled",
            state.values["prefill_graph_backend"].source,
            "set --cuda-graph-backend-prefill to breakable, full or disabled",
        )
    )
