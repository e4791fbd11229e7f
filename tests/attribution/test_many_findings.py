"""One fault many times in a long trace: findings are held against those that may belong to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution import consequences, own_frees, unread
from kvcanary_cli.attribution.book import FindingBook
from kvcanary_cli.attribution.finding_index import FindingIndex
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]
COMPARISONS = [(consequences, "_same_cause"), (unread, "_same_root"), (unread, "_covers")]


def _freed_twice(k: int) -> list[Event]:
    free = {"kind": "free", "owner": f"r{k}", "slots": [5, 6]}
    return [*life(f"r{k}", [1, 2], [5, 6], row=1, step=k + 1), free, free]


def _written_by_a_stranger(k: int) -> list[Event]:
    *events, forward = life(f"r{k}", [1, 2, 3], [5, 6, 7], row=1, step=k + 1)
    free = {"kind": "free", "owner": f"r{k}", "slots": [5, 6, 7]}
    return [*events, forward | {"out_cache_loc": [5, 6, 40 + k % 20]}, free]


def _fed_wrongly(k: int) -> list[Event]:
    *events, forward = life(f"r{k}", [1, 2], [5, 6], row=1, step=k + 1)
    return [
        *events,
        forward | {"input_ids": [1, 9]},
        {"kind": "free", "owner": f"r{k}", "slots": [5, 6]},
    ]


@pytest.mark.parametrize("fault", [_freed_twice, _written_by_a_stranger, _fed_wrongly])
def test_each_is_compared_with_few(
    fault: Callable[[int], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons grow with the findings, not with their square."""
    count = 60
    held: Counter[str] = Counter()

    def counted(name: str, compare: Callable[..., bool]) -> Callable[..., bool]:
        def counting(*args: Any) -> bool:
            held[name] += 1
            return compare(*args)

        return counting

    for module, name in COMPARISONS:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    events = [{"kind": "alloc", "owner": "Z", "slots": list(range(40, 60))}]
    for k in range(count):
        events += [*fault(k), {"kind": "finish", "req": f"r{k}"}]
    findings = diagnose(HEAD, numbered(events)).findings
    assert len(findings) == count
    assert all(held[name] <= 4 * count for _module, name in COMPARISONS), held


def _reads_what_it_gave_back(k: int) -> list[Event]:
    """Each in slots of its own, and it goes on."""
    first = 100 + 4 * k
    return [
        *life(f"r{k}", [1, 2], [first, first + 1], row=1, step=2 * k + 1),
        {"kind": "free", "owner": f"r{k}", "slots": [first]},
        *decode(f"r{k}", 9, first + 2, row=1, position=2, step=2 * k + 2),
    ]


@pytest.mark.parametrize("count", [10, 60])
def test_own_frees_look_at_their_own_findings(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others there are."""
    looked = 0
    for name in ("at", "of_event"):
        ask = getattr(FindingIndex, name)

        def counting(self: FindingIndex, key: int, ask: Any = ask) -> list[Any]:
            nonlocal looked
            found = list(ask(self, key))
            looked += len(found)
            return found

        monkeypatch.setattr(own_frees.FindingIndex, name, counting)
    events = []
    for k in range(count):
        events += [*_reads_what_it_gave_back(k), {"kind": "finish", "req": f"r{k}"}]
    head = HEAD | {"pool": HEAD["pool"] | {"slots": 500}}
    diagnosis = diagnose(head, numbered(events))
    assert len(diagnosis.findings) == count
    assert looked <= 4 * count


@pytest.mark.parametrize("count", [10, 60])
def test_seams_are_held_against_the_wrong_inputs_of_their_writer(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few findings are told by one event: that is all that a seam is held against."""
    books: list[FindingBook] = []
    new = FindingBook.new

    def noted(self: FindingBook, *args: Any) -> Any:
        books[:] = [self]
        return new(self, *args)

    monkeypatch.setattr(FindingBook, "new", noted)
    events = []
    for k in range(count):
        events += [*_fed_wrongly(k), {"kind": "finish", "req": f"r{k}"}]
    assert len(diagnose(HEAD, numbered(events)).findings) == count
    (book,) = books
    assert {len(found) for found in book.wrong_inputs.values()} == {1}
    assert len(book.wrong_inputs) == count
