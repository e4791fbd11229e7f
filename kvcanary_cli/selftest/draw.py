"""Draws the faults of one kind: different ones, as many as were asked for or the run offers."""

from __future__ import annotations

import pickle
import random
import zlib
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import build

if TYPE_CHECKING:
    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.inject.planting import Built, FaultKind, Planted

#: Forwards that are replayed behind the first one that can show a fault.
_FORWARDS_BEHIND = 2
#: Draws in a row without a new fault before a kind counts as used up.
_IDLE_DRAWS = 50


@dataclass(frozen=True, slots=True)
class Drawn:
    """One fault, packed: a long selftest keeps thousands of them.

    Attributes:
        kind: Its name.
        seed: ``kvcanary inject --fault KIND --seed SEED`` plants the same one.
        first: Clean place from which on it differs from the run.
        packed: The built fault.
    """

    kind: str
    seed: int
    first: int
    packed: bytes

    def unpack(self) -> Built:
        return cast("Built", pickle.loads(zlib.decompress(self.packed)))


@dataclass(frozen=True, slots=True)
class KindDraw:
    """The faults of one kind, and how many draws they took."""

    faults: tuple[Drawn, ...]
    draws: int


def draw_kind(run: CleanRun, kind: FaultKind, wanted: int) -> KindDraw:
    """Draw ``wanted`` different faults, fewer if the run seems to offer no more.

    At least ``wanted`` draws are made, and more until ``_IDLE_DRAWS`` of them in a row have brought
    nothing new.
    """
    faults: list[Drawn] = []
    seen: set[bytes] = set()
    seed = idle = 0
    while len(faults) < wanted and (seed < wanted or idle < _IDLE_DRAWS):
        planted = plant(run, kind, seed)
        print_ = None if planted is None else _fingerprint(planted)
        if planted is None or print_ is None or print_ in seen:
            idle += 1
        else:
            idle = 0
            seen.add(print_)
            faults.append(_pack(run, kind, seed, planted))
        seed += 1
    return KindDraw(tuple(faults), seed)


def plant(run: CleanRun, kind: FaultKind, seed: int) -> Planted | None:
    """Plant one fault; None if the run offers this seed no occasion."""
    rng = random.Random(zlib.crc32(kind.name.encode()) ^ seed)
    for _ in range(3):
        planted = kind.plant(run, rng)
        if planted is not None:
            return planted
    return None


def _pack(run: CleanRun, kind: FaultKind, seed: int, planted: Planted) -> Drawn:
    behind = [f for f in run.by_kind["forward"] if f >= planted.until][:_FORWARDS_BEHIND]
    built = build(run, planted, run.behind_forward(behind[-1]) if behind else None)
    # The edits refer to the whole run; the tail has what they did.
    bare = replace(planted, edits=Edits([]), causes=[], bytes=[], histories={})
    data = pickle.dumps(replace(built, planted=bare), protocol=pickle.HIGHEST_PROTOCOL)
    return Drawn(kind.name, seed, built.first, zlib.compress(data, 1))


def _fingerprint(planted: Planted) -> bytes:
    """What tells two faults apart; which wrong bytes a slot gets does not."""
    edits = planted.edits
    places = [change[:-1] for change in planted.bytes]
    what = (sorted(edits.changed.items()), sorted(edits.inserted.items()), sorted(edits.dropped))
    return blake2b(repr((what, places)).encode(), digest_size=16).digest()
