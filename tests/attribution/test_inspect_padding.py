"""What ``inspect`` tells of a slot that a padding row wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, decode, decode_step, life, numbered

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def _trace(path: Path, target: int) -> Path:
    """A decodes beside a padding row that targets a slot, then decodes alone."""
    *before, _ = decode("A", 4, 4, 1, 3, 2)
    step = decode_step(2, "A", 1, 4, 3, 4)
    padding = {"reqs": None, "req_pool_indices": 0, "input_ids": 0, "positions": 0}
    padding |= {"out_cache_loc": target, "seq_lens": 1}
    step |= {name: [*step[name], value] for name, value in padding.items()}
    events = [*life("A", [1, 2, 3], [1, 2, 3], 1, 1), *before, step | {"raw_bs": 1}]
    events += decode("A", 5, 5, 1, 4, 3)
    path.write_text("\n".join(map(json.dumps, [HEAD, *numbered(events)])) + "\n")
    return path


def _ask(path: Path, capsys: pytest.CaptureFixture[str], *question: str) -> list[Event]:
    main(["inspect", str(path), *question, "--format", "json"])
    lines: list[Event] = json.loads(capsys.readouterr().out)["lines"]
    return lines


@pytest.mark.parametrize("target", [0, 2])
def test_a_step_tells_what_its_padding_wrote(
    target: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _ask(_trace(tmp_path / "t.jsonl", target), capsys, "--step", "2")
    assert [(line["req"], line["writes"]) for line in rows] == [
        ("A", [4]),
        (None, [target] if target else []),
    ]


@pytest.mark.parametrize(("step", "padded"), [(2, [False, True]), (3, [True])])
def test_who_wrote_tells_of_padding(
    step: int, padded: list[bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _trace(tmp_path / "t.jsonl", 2)
    lines = _ask(path, capsys, "--who-wrote", f"2@{step}")
    assert [line["who"] for line in lines] == ["A"] * len(padded)
    assert [line["padding"] is not None for line in lines] == padded
    assert "batch row 1" in lines[-1]["padding"]
    assert all("padding" not in line for line in _ask(path, capsys, "--who-wrote", f"1@{step}"))
