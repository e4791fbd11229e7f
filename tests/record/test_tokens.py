"""Salted tokens: equality survives, the ids do not."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.record.tokens import KEY_BYTES, TokenCoder, key_path, load_key

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
    assert load_key(path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["run.kvtrace.key"]


def test_a_foreign_file_at_the_keys_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace.key"
    path.write_text("notes")
    with pytest.raises(InputError, match=r"run\.kvtrace\.key"):
        load_key(path)
