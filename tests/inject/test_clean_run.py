"""What a clean run says of itself, held against going through its events."""

from __future__ import annotations

import pytest

from kvcanary_cli.inject.clean_run import Read
from kvcanary_cli.inject.inject import load_run
from tests.attribution.helpers import CAPTURES


@pytest.mark.parametrize("name", ["canary_clean_all", "ngram_clean", "vllm_clean"])
def test_reads_are_those_of_the_rows_as_they_stand(name: str) -> None:
    run = load_run(str(CAPTURES / f"{name}.jsonl.zst"))
    reads: dict[int, list[Read]] = {}
    cells: dict[int, dict[int, int]] = {}
    for at, event in enumerate(run.events):
        if event["kind"] == "map":
            row = cells.setdefault(event["row"], {})
            row.update(enumerate(event["slots"], start=event["start"]))
        elif at in run.rows and "row_as_read" not in event:
            for r in run.rows[at]:
                for position in range(r.prefix):
                    slot = cells.get(r.row, {}).get(position, 0)
                    reads.setdefault(slot, []).append(Read(at, r.b, position))
    reads.pop(0, None)
    assert sum(map(len, reads.values())) > 1000
    middle = len(run.events) // 2
    for slot, expected in reads.items():
        assert run.reads_between(slot, -1, None) == expected
        assert run.reads_between(slot, middle, None) == [r for r in expected if r.at > middle]
        assert run.reads_between(slot, -1, middle) == [r for r in expected if r.at < middle]
