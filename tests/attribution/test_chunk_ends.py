"""A wrong token at the end of a prompt's chunk, and those that only look like one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import extend, rank_head
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
PROMPT = [11, 12, 13, 14, 15, 16]


def _run(first: list[int], second: list[int], known: list[int]) -> list[Event]:
    events = [
        {"kind": "history", "req": "A", "start": 0, "ids": known},
        {"kind": "alloc", "owner": "A", "slots": [1, 2, 3, 4, 5, 6]},
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3, 4, 5, 6]},
        extend(1, "A", 1, 0, first, [1, 2, 3][: len(first)]),
        extend(2, "A", 1, len(first), second, [1, 2, 3, 4, 5, 6][len(first) :]),
    ]
    return [{**event, "i": i} for i, event in enumerate(events)]


@pytest.mark.parametrize(
    ("first", "second", "subtype"),
    [
        ([11, 12, 99], [14, 15, 16], "chunk_boundary"),
        ([11, 99, 13], [14, 15, 16], "wrong_input_id"),
        ([11, 98, 99], [14, 15, 16], "wrong_input_id"),
        # The end of the prompt ends no chunk.
        ([11, 12, 13], [14, 15, 99], "wrong_input_id"),
        ([11, 12, -1], [14, 15, 16], "placeholder_leak"),
    ],
)
def test_where_the_wrong_token_stands(first: list[int], second: list[int], subtype: str) -> None:
    finding = diagnose(rank_head(0), _run(first, second, PROMPT)).findings[0]
    assert (finding.cls, finding.subtype) == ("wrong_token_fed", subtype)


def test_a_token_of_another_position_is_not_called_unknown() -> None:
    (finding,) = diagnose(rank_head(0), _run([11, 12, 13], [13, 14, 15], PROMPT)).findings
    assert finding.subtype == "wrong_input_id"
    assert "not in the request's history" not in " ".join(finding.evidence)
