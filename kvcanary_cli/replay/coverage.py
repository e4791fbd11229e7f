"""What a trace cannot show, from the families that it did not record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def blind_to(header: TraceHeader, *, ranks: int, check_kv: bool) -> tuple[str, ...]:
    """Root-cause classes that this trace cannot show, by its families or its own word.

    Args:
        header: Its header.
        ranks: How many ranks are looked at together.
        check_kv: Whether fingerprints are checked.
    """
    records = header.records
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
