"""Input facts: what a forward was fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import (
    BY_FORWARD,
    NOBODY,
    TREE,
)
from kvcanary_cli.attribution.result import PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.replay.forwards import Forward


class InputFacts(Facts):
    """Positions and tokens."""

    @property
    def rules(self) -> tuple[Callable[[Damage], Cause | None], ...]:
        """In their order of precedence."""
        return (
            self._position_misalign,
            self._wrong_token,
        )

    def past_the_end(self, damage: Damage) -> Cause | None:
        """The forward read its own, still unwritten slot: its position was too high."""
        if damage.row_offset == 0 or damage.true_position is None:
            return None
        if damage.position < damage.true_position:
            return None
        return self.misaligned(damage.victim, damage.event, damage.step, damage.row_offset)

    def _position_misalign(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        writer = int(writes.req[slot])
        if writer < TREE or damage.kv_only:
            return None
        if writer != damage.victim and self.context.matched(damage.victim, slot) is None:
            return None
        written, belonged = int(writes.position[slot]), int(writes.true_position[slot])
        if NOBODY in (written, belonged) or written == belonged or belonged != damage.position:
            return None
        step = int(writes.step[slot])
        return self.misaligned(writer, damage.writer_event(), step, written - belonged)

    def misaligned(self, req: int, event: int, step: int, offset: int) -> Cause:
        """The forward at ``event`` fed ``req`` positions that are ``offset`` off."""
        victim = self.names.name(req)
        return Cause(
            cls="position_misalign",
            subtype="constant_offset",
            group=(offset,),
            cause_event=event,
            corrupting_event=event,
            culprit=Culprit(req=victim, step=step, event=event),
            ruled_out=[
                RuledOut("stale_mapping", "the row names the right slot; the position is wrong")
            ],
            evidence=[
                f"positions of the forward at event {event} are {offset:+d} off its prefix",
            ],
        )

    def wrong_length(self, req: int, forward: Forward, stated: int, end: int) -> Cause:
        """``forward`` gives ``req`` a length of ``stated``; its row ends at ``end``."""
        reads = (
            f"reads up to position {stated - 1}, {stated - end} behind what was written"
            if stated > end
            else f"leaves the last {end - stated} positions out"
        )
        return Cause(
            cls="position_misalign",
            subtype="lengths_disagree",
            group=(stated - end,),
            cause_event=forward.event,
            corrupting_event=forward.event,
            culprit=Culprit(req=self.names.name(req), step=forward.step, event=forward.event),
            ruled_out=[
                RuledOut("stale_mapping", "the row names the right slots; its length is wrong")
            ],
            # What a kernel makes of it is not in the trace.
            confidence=PROBABLE,
            evidence=[
                f"seq_lens of the forward at event {forward.event} is {stated}; its prefix and "
                f"what it writes end at {end}, and its positions go by them",
                f"a kernel that goes by seq_lens {reads}",
            ],
        )

    def _wrong_token(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if damage.kv_only or damage.expected_token is None:
            return None
        if int(writes.req[slot]) != damage.victim or writes.kind[slot] != BY_FORWARD:
            return None
        if (
            damage.stored_position != damage.position
            or damage.stored_token == damage.expected_token
        ):
            return None
        return self.wrong_token_fed(
            damage.victim, damage.stored_token, damage.writer_event(), int(writes.step[slot])
        )

    def wrong_token_fed(
        self, req: int, token: int, event: int, step: int, *, ends_chunk: bool = False
    ) -> Cause:
        """The forward at ``event`` fed ``token``, which ``req`` never had there.

        ``ends_chunk``: it is the only one of its row, and the last of a chunk of the prompt.
        """
        got = self.context.gets.get(req)
        if got is not None and got[2] == token:
            puts = [p for p in self.context.puts.get(got[1], ()) if p.token == token]
            foreign = [p for p in puts if p.req != req]
            if foreign:
                put = foreign[-1]
                return Cause(
                    cls="wrong_token_fed",
                    subtype="future_ring_wrap",
                    cause_event=put.event,
                    corrupting_event=event,
                    culprit=Culprit(
                        req=self.names.name(put.req),
                        step=None if put.step == NOBODY else put.step,
                        event=put.event,
                    ),
                    ruled_out=[RuledOut("spec_commit", "the token came through the future ring")],
                    evidence=[
                        f"ring entry {got[1]} was last put by {self.names.name(put.req)} at "
                        f"event {put.event}",
                        f"token {token} was fed at event {event}",
                    ],
                )
        subtype = "chunk_boundary" if ends_chunk else "wrong_input_id"
        if token < 0:
            subtype = "placeholder_leak"
        return Cause(
            cls="wrong_token_fed",
            subtype=subtype,
            cause_event=event,
            corrupting_event=event,
            culprit=Culprit(req=self.names.name(req), step=step, event=event),
            ruled_out=[
                RuledOut("use_after_free", "the request itself wrote the slot, at its position")
            ],
            evidence=[
                f"token {token} fed at event {event} is not the one that the request has there"
            ],
        )
