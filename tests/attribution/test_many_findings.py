"""One fault many times in a long trace: findings are held against those that may belong to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution import consequences, unread
from tests.attribution.events import HEAD, life, numbered
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
