"""What a trace cannot show, from the families that it did not record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from kvcanary_cli.trace.header import TraceHeader

#: Root-cause class to alternatives: it can be seen if all families of one alternative are there.
#: ``bad_translation`` matters only with a sliding-window pool; ``rank_divergence`` needs no family
#: of its own but several ranks, ``not_corruption`` nothing but the others.
CLASS_NEEDS: dict[str, tuple[frozenset[str], ...]] = {
    "use_after_free": (frozenset({"alloc", "map"}),),
    "double_alloc": (frozenset({"alloc"}),),
    "late_write": (frozenset({"alloc", "launch"}), frozenset({"alloc", "transfer"})),
    "transfer_race": (frozenset({"transfer"}),),
    "transfer_mismatch": (frozenset({"transfer"}),),
    "stale_mapping": (frozenset({"map", "alloc"}),),
    "bad_translation": (frozenset({"lut"}),),
    "pad_or_dummy_write": (frozenset({"graph"}), frozenset({"kv_hash"})),
    "position_misalign": (frozenset({"map"}),),
    "wrong_token_fed": (frozenset({"history"}),),
    "spec_commit": (frozenset({"spec", "history"}),),
    "prefix_index": (frozenset({"prefix"}),),
    "key_aliasing": (frozenset({"namespace", "prefix"}),),
    "unwritten_read": (frozenset({"map"}),),
    "payload_mutation": (frozenset({"kv_hash"}), frozenset({"sidecar_hash"})),
}

#: What is not seen without a family, or without a kind of ``alloc`` events.
WITHOUT = {
    "forward": "nothing is checked",
    "map": "prefixes are not verified",
    "alloc": "owners are not known",
    "free": "what came back is not known",
    "own": "what the prefix cache was given is not known",
    "request": "ends of requests are not known",
    "history": "tokens are not compared",
    "prefix": "the prefix index is not known",
    "transfer": "copies are not known",
    "lut": "the sliding-window pool is not checked",
    "launch": "launch order is not known",
    "spec": "accepted drafts are not known",
    "fork": "forks are not known",
    "future": "the future ring is not known",
    "kv_hash": "byte changes are not checked",
    "sidecar_hash": "scales are not checked",
    "namespace": "adapters are not compared",
    "graph": "padding is not told from requests",
    "canary_rows": "rows from before a cut are not known",
    "recording": "whether the recorder gave up is not known",
}

#: Families that a run with forwards cannot but show where they are recorded, and their kinds.
_SHOWN_BY: dict[str, frozenset[str]] = {
    "map": frozenset({"map"}),
    "alloc": frozenset({"alloc", "free", "own"}),
    "history": frozenset({"history"}),
    "lut": frozenset({"lut"}),
    "kv_hash": frozenset({"kv_hash"}),
    "sidecar_hash": frozenset({"sidecar_hash"}),
}


def silent_families(header: TraceHeader, kinds: AbstractSet[str]) -> tuple[str, ...]:
    """Families that the header promises and that a run with forwards has no event of.

    Args:
        header: Of the trace.
        kinds: Kinds of the events that were met.
    """
    return tuple(
        family
        for family, its_kinds in _SHOWN_BY.items()
        if family in header.records
        and not its_kinds & kinds
        and (family != "lut" or header.pool.swa_slots)
        and (family != "history" or header.tokens != "absent")
    )


def blind_to(
    header: TraceHeader, *, ranks: int, check_kv: bool, silent: Iterable[str] = ()
) -> tuple[str, ...]:
    """Root-cause classes that this trace cannot show, by its families or its own word.

    Args:
        header: Its header.
        ranks: How many ranks are looked at together.
        check_kv: Whether fingerprints are checked.
        silent: Families that it promises and does not show.
    """
    records = header.records - set(silent)
    if not check_kv:
        records = records - {"kv_hash"}
    if header.tokens == "absent":
        # Whatever the header says: nothing is there to be compared with.
        records = records - {"history"}
    blind = [
        name
        for name, ways in CLASS_NEEDS.items()
        if name in header.blind_to or not any(way <= records for way in ways)
    ]
    if not header.pool.swa_slots and "bad_translation" in blind:
        blind.remove("bad_translation")
    if ranks < 2:
        blind.append("rank_divergence")
    return tuple(sorted(blind))
