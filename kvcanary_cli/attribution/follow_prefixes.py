"""The prefix index, adapters and forks as the ledger follows them: what requests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.ledger import TREE, Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.earlier_frees import EarlierFrees
    from kvcanary_cli.attribution.ownership import OwnershipRules
    from kvcanary_cli.trace.segment import Segment


class PrefixEvents:
    """Enters publishes, matches, adapters and forks.

    Args:
        names: Interned names.
        rules: Owners.
        context: Takes entries, matches and adapters.
        frees: Which free took a slot from an entry.
    """

    def __init__(
        self, names: Names, rules: OwnershipRules, context: Context, frees: EarlierFrees
    ) -> None:
        self._names, self._rules, self._context = names, rules, context
        self._frees = frees

    def handlers(self) -> dict[str, Callable[[Segment, int, int], None]]:
        """Event kind to what applies it: (segment, row of its table, ``i``)."""
        return {
            "publish": self.publish,
            "unpublish": self.unpublish,
            "adapter": self.adapter,
            "match": self.match,
            "fork": self.fork,
        }

    def publish(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["publish"]
        slots = table.get_ints("slots", row)
        req = segment.text("publish", "req", row) if "req" in table.columns else None
        if slots is not None and req is not None:
            self._rules.publish(req, slots, event)
        elif slots is not None:
            self._rules.publish(None, slots, event)
        entry = segment.text("publish", "entry", row) or ""
        self._context.unlisted.pop(entry, None)
        if slots is None:
            self._context.unlisted[entry] = None if req is None else self._names.code(req)
        if "namespace" in table.columns:
            namespace = segment.text("publish", "namespace", row)
            if namespace is not None:
                self._context.entries[entry] = self._context.namespace(namespace)

    def adapter(self, segment: Segment, row: int, event: int) -> None:
        version = segment.json("adapter", "version", row)
        self._context.adapters[segment.text("adapter", "name", row) or ""] = str(version)

    def unpublish(self, segment: Segment, row: int, event: int) -> None:
        entry = segment.text("unpublish", "entry", row) or ""
        self._context.leave(entry)
        self._context.unlisted.pop(entry, None)

    def match(self, segment: Segment, row: int, event: int) -> None:
        slots = segment.tables["match"].get_ints("slots", row)
        assert slots is not None
        req = segment.text("match", "req", row) or ""
        entry = segment.text("match", "entry", row) or ""
        if entry in self._context.unlisted:
            # What it covers is known from what it serves only.
            owners, publisher = self._rules.state.owner[slots], self._context.unlisted[entry]
            its = owners > TREE if publisher is None else owners == publisher
            self._rules.share(slots[its])
        sound_so_far = len(self._rules.findings)
        lost = self._rules.match(req, slots, event)
        code = self._names.code(req)
        self._context.note_match(code, segment, row, event, frozenset(lost.tolist()))
        match = self._context.matches[code][-1]
        for found in self._rules.findings[sound_so_far:]:
            for slot in found.slots:
                self._context.taken[event, code, slot] = self._frees.of_match(match, slot)

    def fork(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["fork"]
        shared = table.get_ints("shared", row)
        if shared is not None:
            self._rules.fork(shared, segment.text("fork", "child", row), event)
        pairs: list[list[int]] = []
        if "copy_on_write" in table.columns:
            pairs = segment.json("fork", "copy_on_write", row) or []
        for src, dst in pairs:
            self._context.cow_event[int(dst)] = event
            self._context.cow_from[int(src)] = (event, int(dst))
