"""Pages of other tiers that were stored into anew before they were loaded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import BY_COPY, NEVER
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.cargo import Cargo, Held, Store


# A page may have come through so many tiers.
_HOPS = 8


class _Lost(NamedTuple):
    """What a page held, the store that replaced it, which of its slots, and how sure that is."""

    before: Store
    by: Store
    k: int
    confidence: str


class StoredPages(Facts):
    """A load is not to blame for what a later store put into the page that it reads."""

    def overwritten(self, damage: Damage) -> Cause | None:
        """A page was given to another store while what it held was still served."""
        writes, slot = damage.writes, damage.slot
        if writes.kind[slot] != BY_COPY or damage.pool_kind != "FULL" or damage.kv_only:
            return None
        load = self._load(slot, damage.came_event())
        if load is None:
            return None
        cargo, entry, way = load
        assert cargo.held is not None
        lost = self._lost(cargo, cargo.held[entry], damage)
        if lost is None:
            return None
        store, before = lost.by, lost.before
        place = f"{cargo.pool} slot {int(cargo.src[entry])}"
        details = {} if store.transfer is None else {"transfer": store.transfer}
        return Cause(
            cls="transfer_race",
            subtype="stored_page_overwritten",
            cause_event=store.event,
            corrupting_event=store.event,
            culprit=Culprit(
                req=self.names.name(store.by), step=None, event=store.event, details=dict(details)
            ),
            confidence=lost.confidence,
            ruled_out=[
                RuledOut(
                    "transfer_mismatch",
                    f"the load at event {cargo.event} read the page that the store at event "
                    f"{before.event} had filled",
                )
            ],
            evidence=[
                f"the store at event {before.event}{_under(before)} filled {place} with position "
                f"{damage.position}",
                f"the store at event {store.event}{_under(store)} wrote "
                f"{self._whose(store, lost.k)} over it",
                f"the load at event {cargo.event}"
                + ("" if cargo.key is None else f" of key {cargo.key}")
                + " brought that",
                *(f"the copy at event {one.event} moved it on" for one in way),
                *self._served(damage, store, cargo),
            ],
        )

    def _load(self, slot: int, came: int) -> tuple[Cargo, int, list[Cargo]] | None:
        """The load that brought what came into ``slot`` at event ``came``.

        Returns:
            It, its entry, and the copies within the pool that moved the content on, first first.
        """
        way: list[Cargo] = []
        while len(way) < _HOPS:
            cargo = self.context.cargos.at(came)
            entry = None if cargo is None else cargo.entry(slot)
            if cargo is None or entry is None:
                return None
            if cargo.held is not None:
                return cargo, entry, way[::-1]
            way.append(cargo)
            slot, came = int(cargo.src[entry]), int(cargo.came[entry])
        return None

    def _lost(self, cargo: Cargo, held: Held, damage: Damage) -> _Lost | None:
        """Where the content was lost on its way through the tiers, latest first."""
        way: list[Store] = []
        while len(way) < _HOPS:
            if not held or held[0][0].holds(held[0][1], damage.position, damage.expected_token):
                return None
            for later, earlier in pairwise(held):
                lost = self._replaced(cargo, earlier, later, damage, way)
                if lost is not None:
                    return lost
            store, k = held[0]
            way.append(store)
            held = () if store.came_from is None else store.came_from[k]
        return None

    def _replaced(
        self,
        cargo: Cargo,
        earlier: tuple[Store, int],
        later: tuple[Store, int],
        damage: Damage,
        way: Sequence[Store],
    ) -> _Lost | None:
        """Whether ``later`` took the page from what the load got by ``way`` of other stores."""
        store, k = earlier
        fits = store.holds(k, damage.position, damage.expected_token)
        if cargo.key is not None and store.key == cargo.key:
            if not fits and later[0].key == cargo.key:
                return None
            refiled = self.context.tiers.refiled(store, k)
            if refiled is not None and not any(refiled is one for one in (later[0], *way)):
                # It was filed anew elsewhere: the load should have read that.
                return None
            sure = fits and later[0].key not in (None, cargo.key)
            return _Lost(store, *later, CERTAIN if sure else PROBABLE)
        if not fits or None not in (cargo.key, store.key):
            return None
        here = (cargo.positions == damage.position) & (cargo.tokens == damage.expected_token)
        # What the same load brought to another slot was not lost: it paired its pages wrongly.
        return None if here.any() else _Lost(store, *later, PROBABLE)

    def _whose(self, store: Store, k: int) -> str:
        writer = self.names.name(int(store.writers[k]))
        return "other content" if writer is None else f"what {writer} had written"

    def _served(self, damage: Damage, store: Store, cargo: Cargo) -> list[str]:
        """When the page was reserved for the reader, against the store that took it."""
        out = []
        if NEVER != cargo.begun < store.event:
            out.append(f"the load had begun at event {cargo.begun}")
        for fact in reversed(self.context.matches.get(damage.victim, ())):
            if not len(fact.slots):
                when = "before" if fact.event < store.event else "behind"
                reader = self.names.name(damage.victim)
                out.append(
                    f"{reader} was served entry {fact.entry} from another tier at event "
                    f"{fact.event}, {when} that store"
                )
                break
        return out


def _under(store: Store) -> str:
    return "" if store.key is None else f" under key {store.key}"
