"""Salted tokens: equality survives, the ids do not."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.record import tokens
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session
from kvcanary_cli.record.shadows import HistoryShadow
from kvcanary_cli.record.tokens import KEY_BYTES, TokenCoder, key_path, load_key
from tests.record.helpers import HEADER, WAIT_S, events, parts

if TYPE_CHECKING:
    from pathlib import Path

_IDS = st.lists(st.integers(-1, 200_000), max_size=60)


@given(_IDS)
def test_equal_ids_and_only_those_have_equal_hashes(ids: list[int]) -> None:
    coded = TokenCoder("salted", b"k" * KEY_BYTES).encode(np.array(ids, dtype=np.int64)).tolist()
    assert len(coded) == len(ids)
    assert all(0 <= value < 1 << 63 for value in coded)
    for a, x in zip(ids, coded, strict=True):
        for b, y in zip(ids, coded, strict=True):
            assert (a == b) == (x == y)


def test_hashes_say_nothing_about_the_vocabulary() -> None:
    vocabulary = np.arange(50_000)
    one = TokenCoder("salted", b"a" * KEY_BYTES).encode(vocabulary)
    other = TokenCoder("salted", b"b" * KEY_BYTES).encode(vocabulary)
    assert not np.isin(one, vocabulary).any()
    assert not np.isin(one, other).any()
    # A guess needs the key: neither order nor distance of ids shows.
    assert abs(float(np.corrcoef(vocabulary, one.astype(np.float64))[0, 1])) < 0.05


def test_raw_ids_stay() -> None:
    ids = np.array([3, -1, 7])
    assert TokenCoder("raw").encode(ids) is ids


def test_the_key_lies_beside_the_recording_for_its_owner_only(tmp_path: Path) -> None:
    recording = tmp_path / "run.kvtrace"
    path = key_path(str(recording))
    first = load_key(path)
    assert path.parent == tmp_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) == KEY_BYTES
    path.chmod(0o644)
    assert load_key(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["run.kvtrace.key"]


_RANK = """
import sys
from pathlib import Path
from kvcanary_cli.record.tokens import load_key
sys.stdin.readline()
print(load_key(Path(sys.argv[1])).hex())
"""


def test_ranks_that_start_at_once_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace.key"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    keys = {rank.communicate(timeout=WAIT_S)[0] for rank in ranks}
    assert keys == {path.read_bytes().hex() + "\n"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_link_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError("links are not supported here")

    for name in ("link", "symlink", "rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
    assert len(load_key(tmp_path / "k")) == KEY_BYTES


def test_a_key_that_is_still_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "KEY_WAIT_S", WAIT_S)
    path = tmp_path / "k"
    path.touch(mode=0o600)
    writer = threading.Timer(0.2, path.write_bytes, (b"x" * KEY_BYTES,))
    writer.start()
    assert load_key(path) == b"x" * KEY_BYTES
    writer.join()


@pytest.mark.parametrize("content", ["notes", "n" * (KEY_BYTES + 1), ""])
def test_a_foreign_file_at_the_keys_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(tokens, "KEY_WAIT_S", 0.0)
    path = tmp_path / "run.kvtrace.key"
    path.write_text(content)
    with pytest.raises(InputError, match=r"run\.kvtrace\.key"):
        load_key(path)


def test_no_prompt_can_be_read_from_a_salted_trace(tmp_path: Path) -> None:
    """Bytes of a whole recording: no id of the prompt, no beginning of the vocabulary, no key."""
    prompt = [31_000 + 7 * k for k in range(24)]
    session = Session(RecordOptions(path=str(tmp_path / "run.kvtrace")), dict(HEADER))
    histories = HistoryShadow(session.tokens)
    for req in ("a", "b"):
        session.emit_all(histories.show(req, prompt, [31_007]))
        forward = {"kind": "forward", "step": ord(req), "forward_mode": "EXTEND", "reqs": [req]}
        forward |= {"req_pool_indices": [1], "seq_lens": [24], "extend_prefix_lens": [0]}
        forward |= {"extend_seq_lens": [24], "positions": list(range(24))}
        forward |= {"out_cache_loc": list(range(1, 25))}
        forward["input_ids"] = session.tokens.encode(np.array(prompt))
        session.emit(forward)
        session.commit(step=True)
    session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    first, second = (e["ids"] for e in found if e["kind"] == "history")
    # Equal tokens are equal, in histories and forwards and across requests.
    assert first == second
    assert [e["input_ids"] for e in found if e["kind"] == "forward"] == [first[:24]] * 2
    assert first[24] == first[1]
    assert len(set(first)) == 24
    vocabulary = set(range(200_000))
    assert not vocabulary & {n for e in found for n in (e.get("ids") or e["input_ids"])}
    key = key_path(str(tmp_path / "run.kvtrace")).read_bytes()
    # Not in any form that a column could have, either.
    for file in trace.rglob("*"):
        data = file.read_bytes()
        assert key not in data
        for dtype in ("<i2", "<i4", "<i8", ">i4"):
            assert np.array(prompt[:3]).astype(dtype).tobytes() not in data
            assert np.arange(100, 108).astype(dtype).tobytes() not in data
        assert not re.search(rb"31000|31007|31014", data)
