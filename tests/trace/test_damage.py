"""Damaged files give a TraceError or the right events: never another exception, never a hang."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.trace.convert import convert
from kvcanary_cli.trace.errors import TraceError
from tests.trace.helpers import SCENARIOS, read_events, small_trace, write_jsonl, write_trace
from tests.trace.strategies import JSON_VALUES, Event, traces

if TYPE_CHECKING:
    from pathlib import Path

_SCENARIO = SCENARIOS / "S13_pad_or_dummy_write.jsonl"


def _outcome(path: Path) -> list[dict[str, Any]] | None:
    """The events, or None if the file was refused."""
    try:
        return read_events(path)
    except TraceError:
        return None


@pytest.mark.parametrize("suffix", [".pt", ".jsonl.zst"])
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_refused_or_harmless(tmp_path: Path, suffix: str, seed: int) -> None:
    rng = random.Random(seed)
    good = tmp_path / f"good{suffix}"
    convert(_SCENARIO, good)
    want = read_events(good)
    data = good.read_bytes()
    refused = 0
    for _ in range(150):
        bad = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path = tmp_path / f"bad{suffix}"
        path.write_bytes(bad)
        got = _outcome(path)
        refused += got is None
        # zstd frames written in one piece carry no checksum: other events that are valid may come.
        if suffix == ".pt" and got is not None:
            assert got == want
    assert refused > 20


@pytest.mark.parametrize("suffix", [".pt", ".jsonl.zst", ".jsonl"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(7)
    good = tmp_path / f"good{suffix}"
    convert(_SCENARIO, good)
    data = good.read_bytes()
    path = tmp_path / f"bad{suffix}"
    lengths = [rng.randrange(len(data) - 1) for _ in range(120)] + [0, 1, 4, 30, len(data) - 2]
    for length in lengths:
        if suffix == ".jsonl" and (data[:length] + b"\n").endswith((b"\n\n", b"}\n")):
            continue  # a cut at the end of a line leaves a shorter trace
        path.write_bytes(data[:length])
        assert _outcome(path) is None, length


def test_flipped_characters_of_a_jsonl_never_escape(tmp_path: Path) -> None:
    rng = random.Random(3)
    data = _SCENARIO.read_bytes()
    path = tmp_path / "bad.jsonl"
    refused = 0
    for _ in range(300):
        bad = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            bad[rng.randrange(len(bad))] = rng.choice(b'0123456789-.eE"{}[],: \n\x00\xffabn')
        path.write_bytes(bad)
        refused += _outcome(path) is None
    assert refused > 100


_VALUES = st.one_of(
    JSON_VALUES,
    # Copied, as a later change may append to what an earlier one drew.
    st.sampled_from(
        [[], [0], [-1, 1 << 62], [None], ["A", None], 0, -1, 1 << 63, "", {}, [[]]]
    ).map(deepcopy),
    st.lists(st.integers(-2, 50), max_size=6),
    st.sampled_from(["EXTEND", "DECODE", "IDLE", "TARGET_VERIFY", "DRAFT_EXTEND_V2", "PREBUILT"]),
)


@given(trace=traces(max_events=6), data=st.data())
@settings(max_examples=120, deadline=None)
def test_events_with_fields_exchanged_are_refused_in_place_or_kept(
    tmp_path_factory: pytest.TempPathFactory,
    trace: tuple[dict[str, Any], list[Event]],
    data: st.DataObject,
) -> None:
    header, events = trace
    if not events:
        return
    changed = data.draw(st.integers(0, len(events) - 1))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(events[changed])))
        match data.draw(st.sampled_from(["replace", "remove", "item"])):
            case "replace":
                events[changed][name] = data.draw(_VALUES)
            case "remove" if len(events[changed]) > 1:
                del events[changed][name]
            case "item" if isinstance(events[changed][name], list):
                events[changed][name].append(data.draw(_VALUES))
    path = write_jsonl(tmp_path_factory.mktemp("t") / "a.jsonl", header, events)
    refused_line = None
    try:
        got = read_events(path)
    except TraceError as error:
        refused_line = int(error.where.rpartition(":")[2])
    if refused_line is None:
        assert got == events
    else:
        # An 'i' or step that is too large makes an event behind it the wrong one.
        assert refused_line >= changed + 2


def _state(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    import torch

    header, events = small_trace()
    events[3]["tree"] = {"parent": [-1, -1]}
    path = write_trace(tmp_path / "a.pt", header, events)
    return path, torch.load(path, weights_only=True)


def _tables(state: dict[str, Any], change: Any) -> str:
    tables = json.loads(state["tables"])
    change(tables)
    return json.dumps(tables)


def _cases() -> list[tuple[str, Any, str]]:
    import torch

    def tensor(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    return [
        ("no header", lambda s: s.pop("header"), "column header: expected text, found nothing"),
        ("bad header", lambda s: s.update(header="{"), "header: column 2 is not valid JSON"),
        ("no layout", lambda s: s.pop("layout"), "column layout: expected 1"),
        ("newer layout", lambda s: s.update(layout=2), "column layout: expected 1"),
        ("no kinds", lambda s: s.pop("kind"), "column kind: expected a tensor of integers"),
        ("bool kinds", lambda s: s.update(kind=s["kind"].bool()), "found a bool tensor of 4 items"),
        ("kind code", lambda s: s["kind"].fill_(3), "column kind: expected codes from 0 to 2"),
        ("kind count", lambda s: s["kind"].fill_(0), "names more events of kind 'alloc' than"),
        ("fewer i", lambda s: s.update(i=s["i"][:3].clone()), "as many as 'kind' (4) and 'i' (3)"),
        ("events", lambda s: s.update(events=5), "column events: expected as many as"),
        ("no tables", lambda s: s.pop("tables"), "column tables: expected text"),
        ("tables JSON", lambda s: s.update(tables="[{"), "column tables: expected JSON"),
        ("tables list", lambda s: s.update(tables="{}"), "column tables: expected a JSON list"),
        (
            "table twice",
            lambda s: s.update(tables=_tables(s, lambda t: t.append(t[0]))),
            "expected a kind, its rows and its columns, each once",
        ),
        (
            "rows",
            lambda s: s.update(tables=_tables(s, lambda t: t[0].update(rows=2))),
            "column alloc.owner: expected 2 items (rows of its table)",
        ),
        (
            "type name",
            lambda s: s.update(tables=_tables(s, lambda t: t[0]["columns"].update(owner="FLOAT"))),
            "column types that this version knows, alloc.owner",
        ),
        (
            "other type",
            lambda s: s.update(tables=_tables(s, lambda t: t[0]["columns"].update(owner="INT"))),
            "alloc.owner to be STR",
        ),
        (
            "required",
            lambda s: s.update(tables=_tables(s, lambda t: t[0]["columns"].pop("owner"))),
            "column alloc.owner: expected a string for every 'alloc'",
        ),
        ("no column", lambda s: s.pop("map.row"), "column map.row: expected a tensor of integers"),
        ("no offsets", lambda s: s.pop("map.slots.offsets"), "column map.slots.offsets: expected"),
        (
            "short offsets",
            lambda s: s.update({"forward.reqs.offsets": tensor(0, 4)}),
            "column forward.reqs: has 2 offsets, expected 3",
        ),
        (
            "offsets go back",
            lambda s: s.update({"forward.reqs.offsets": tensor(0, 9, 4)}),
            "column forward.reqs: its offsets go back",
        ),
        (
            "offsets end",
            lambda s: s.update({"forward.reqs.offsets": tensor(0, 2, 1 << 40)}),
            "its offsets run from 0 to 1099511627776, expected 0 to 4",
        ),
        (
            "presence",
            lambda s: s.update({"forward.tree.present": tensor(1, dtype=torch.bool)}),
            "column forward.tree.present: expected a bool tensor of 2 items",
        ),
        (
            "absent with items",
            lambda s: s["forward.extend_seq_lens.present"].fill_(False),
            "column forward.extend_seq_lens: has items for an event that lacks it",
        ),
        (
            "required absent",
            lambda s: s.update({"map.row.present": tensor(0, dtype=torch.bool)}),
            "column map.row: expected an integer for every 'map'",
        ),
        ("code", lambda s: s["alloc.owner"].fill_(99), "column alloc.owner: names string 99"),
        ("null code", lambda s: s["alloc.owner"].fill_(-1), "column alloc.owner: names string -1"),
        ("UTF-8", lambda s: s["strings"].fill_(0xFF), "is not UTF-8"),
        (
            "string offsets",
            lambda s: s.update({"strings.offsets": tensor(0)}),
            "column strings: its offsets run from 0 to 0",
        ),
        (
            "JSON",
            lambda s: s["forward.tree"].fill_(0),
            "column forward.tree: column 1 is not valid",
        ),
        (
            "two dimensions",
            lambda s: s.update(i=s["i"].reshape(2, 2)),
            "column i: expected a flat tensor, found shape (2, 2)",
        ),
        (
            "strided",
            lambda s: s.update(i=torch.arange(8)[::2]),
            "column i: expected a flat tensor, found shape (4,) with stride (2,)",
        ),
        (
            "wrong values",
            lambda s: s.update({"forward.positions": s["forward.positions"] + 16}),
            "event 2 (i=2): 'forward' field 'positions'[0] is 16",
        ),
    ]


@pytest.mark.parametrize(("name", "change", "said"), _cases(), ids=[c[0] for c in _cases()])
def test_a_dictionary_that_does_not_fit_itself(
    tmp_path: Path, name: str, change: Any, said: str
) -> None:
    import torch

    path, state = _state(tmp_path)
    change(state)
    torch.save(state, path)
    with pytest.raises(TraceError) as caught:
        read_events(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_bool_column_holds_nothing_but_bools(tmp_path: Path) -> None:
    import torch

    header, events = small_trace()
    events.append({"kind": "copy", "i": 4, "src": [1], "dst": [2], "canary": True})
    path = write_trace(tmp_path / "a.pt", header, events)
    state = torch.load(path, weights_only=True)
    state["copy.canary"].fill_(2)
    torch.save(state, path)
    with pytest.raises(TraceError, match=r"column copy\.canary: holds a number other than 0 and 1"):
        read_events(path)
