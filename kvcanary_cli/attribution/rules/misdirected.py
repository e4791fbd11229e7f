"""What a reader misses was copied for it, to another slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvcanary_cli.attribution.cargo import UNKNOWN_CONTENT
from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import BY_VERIFY, FREE, NEVER, UNKNOWN
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from kvcanary_cli.attribution.cargo import Cargo


class _Astray(NamedTuple):
    """The entry of a copy that holds what belongs in the damaged slot, and how sure that is."""

    cargo: Cargo
    entry: int
    confidence: str


class MisdirectedCopies(Facts):
    """The other side of a copy to the wrong pages: who waits for what it brought elsewhere."""

    def misdirected(self, damage: Damage) -> Cause | None:
        """A slot that lacks what a copy for its reader put into another one."""
        full = damage.worker == "target" and damage.pool_kind == "FULL"
        if not full or damage.kv_only or damage.row < 0:
            return None
        astray = self._astray(damage)
        if astray is None:
            return None
        cargo, entry, confidence = astray
        landed = int(cargo.dst[entry])
        told = self._told(damage, cargo, entry)
        known = self.context.misled.get((cargo.event, landed))
        if known is not None:
            # Told by whoever the other slot belongs to: both are sides of one fault.
            sure = confidence if known.subtype == "wrong_pages" else known.confidence
            evidence = list(known.evidence)
            return replace(known, evidence=evidence, other_side=(told, landed), confidence=sure)
        details = {} if cargo.transfer is None else {"transfer": cargo.transfer}
        sender = self.names.name(int(cargo.senders[entry]))
        return Cause(
            cls="transfer_mismatch",
            subtype="wrong_pages",
            cause_event=cargo.event,
            corrupting_event=cargo.event,
            culprit=Culprit(req=sender, step=None, event=cargo.event, details=dict(details)),
            confidence=confidence,
            ruled_out=[
                RuledOut("unwritten_read", f"what slot {damage.slot} lacks was copied elsewhere")
            ],
            other_side=(told, None),
        )

    def _astray(self, damage: Damage) -> _Astray | None:
        slot, state = damage.slot, self.state
        forked = self.context.cow_event.get(slot, NEVER)
        if forked == NEVER and not self.may_be_read(damage):
            return None
        came, allocated = damage.came_event(), int(state.alloc_event[slot])
        unwritten = came == NEVER or came < allocated
        draft = int(damage.writes.kind[slot]) == BY_VERIFY
        if not unwritten and not (draft and int(damage.writes.req[slot]) == damage.victim):
            return None
        reqs = {damage.victim, int(state.owner[slot])} - {UNKNOWN, FREE}
        since = max(came, allocated)
        for cargo in self.context.cargos.made_for(reqs, since, slot, damage.position):
            found = self._in(cargo, damage)
            if found is not None:
                return found
        for cargo in self.context.cargos.unnamed(since):
            # For whom it was the trace does not tell; it brought just what is missing here.
            fit = [
                k for k in cargo.entries(damage.position, damage.expected_token) if cargo.over[k]
            ]
            if fit and damage.expected_token is not None:
                return _Astray(cargo, fit[-1], PROBABLE)
        return None

    def _in(self, cargo: Cargo, damage: Damage) -> _Astray | None:
        """The entry of a copy that should have gone to the damaged slot."""
        slot, position = damage.slot, damage.position
        if slot in cargo.meant:
            return _Astray(cargo, cargo.meant[slot], CERTAIN)
        named = cargo.window is not None and bool(cargo.window.names(np.array([slot]))[0])
        mapped = self.held_since(damage)
        for k in reversed(cargo.entries(position, damage.expected_token)):
            if slot in (int(cargo.dst[k]), int(cargo.src[k]) if cargo.pool == "full" else 0):
                continue
            same = cargo.tokens[k] == damage.expected_token
            if named and cargo.outside[k]:
                return _Astray(cargo, k, CERTAIN)
            if cargo.stray[k]:
                mine = damage.victim in cargo.reqs
                return _Astray(cargo, k, CERTAIN if same and mine else PROBABLE)
            if same and NEVER != mapped < cargo.event:
                # To a slot that the reader might have had it in, but its row never led there.
                return _Astray(cargo, k, PROBABLE)
        if named and slot not in cargo.dst:
            # Of what a copy of the transfer put elsewhere, the trace does not tell what it was.
            untold = cargo.untold_outside()
            return None if untold is None else _Astray(cargo, untold, PROBABLE)
        return None

    def _told(self, damage: Damage, cargo: Cargo, entry: int) -> str:
        landed, owner = int(cargo.dst[entry]), int(cargo.owners[entry])
        if not cargo.reqs:
            nobody = owner in (FREE, UNKNOWN)
            whose = "which was nobody's" if nobody else f"which {self.who(owner)} had filled"
        elif owner == FREE:
            whose = "which was free"
        elif owner == UNKNOWN:
            whose = "whose owner the trace does not show"
        elif owner == damage.victim:
            whose = "which its row does not name there"
        else:
            whose = f"which {self.who(owner)} had"
        brought = int(cargo.positions[entry])
        what = "its content" if brought == UNKNOWN_CONTENT else f"position {brought}"
        reader = self.names.name(damage.victim)
        whom = f" for {reader}" if cargo.reqs else ", for nobody that it names,"
        return (
            f"the copy at event {cargo.event} brought {what}{whom} to slot {landed}, "
            f"{whose}; slot {damage.slot}, where {reader} reads it, got nothing"
        )
