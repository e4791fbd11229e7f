"""Files that would run code when unpickled are refused by name, and nothing runs."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import open_trace
from tests.trace.helpers import read_events, small_trace, write_trace

if TYPE_CHECKING:
    from pathlib import Path


class _Run:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


class SomebodysClass:
    """A class that only the writer of the file has."""


def _with_pickle(path: Path, pickled: bytes) -> Path:
    """A torch.save file with another pickle in it."""
    header, events = small_trace()
    source = write_trace(path.with_name("good.pt"), header, events)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = pickled if info.filename.endswith("/data.pkl") else old.read(info)
            new.writestr(info.filename, data)
    return path


def _refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_events(path)
    assert str(path) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, f"{os.name}.system"), (eval, "builtins.eval"), (exec, "builtins.exec")],
    ids=["os.system", "eval", "exec"],
)
def test_a_call_is_named_and_not_made(
    tmp_path: Path, protocol: int, function: Any, name: str
) -> None:
    ran = tmp_path / "ran"
    argument = f"touch {ran}" if function is os.system else f"open({str(ran)!r}, 'w').close()"
    pickled = pickle.dumps({"format": _Run(function, argument)}, protocol=protocol)
    message = _refused(_with_pickle(tmp_path / "a.pt", pickled))
    assert f"the pickle needs {name}" in message
    assert not ran.exists()
    pickle.loads(pickled)  # the file is as dangerous as it is meant to be
    assert ran.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_an_unknown_class_is_named(tmp_path: Path, protocol: int) -> None:
    pickled = pickle.dumps({"format": SomebodysClass()}, protocol=protocol)
    message = _refused(_with_pickle(tmp_path / "a.pt", pickled))
    assert "the pickle needs" in message
    assert "SomebodysClass" in message or "_reconstructor" in message


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"(ios\nsystem\n.", "needs os.system"),
        (b"cos\nsystem\n(S'true'\ntR.", "needs os.system"),
        # The name comes out of the memo, behind harmless strings.
        (
            b"\x80\x04}(\x8c\x02os\x94\x8c\x06systemu\x8c\x05torch\x8c\x0bByteStorage"
            b"h\x00\x8c\x06system\x93.",
            "needs os.system",
        ),
        (b"\x80\x02\x82\x01.", "needs the instruction EXT1"),
        (b"\x80\x02}b.", "needs the instruction BUILD"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "needs the instruction NEWOBJ"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v3\n.", "needs torch._utils._rebuild_tensor_v3"),
        (b"\x80\x02ctorch\nFloatStorage\n.", "needs torch.FloatStorage"),
        (b"\x80\x02", "the pickle is damaged"),
        (b"", "the pickle is damaged"),
        (b".", "the pickle is damaged"),
        (b"\x80\x02h\x05.", "the pickle is damaged"),
        (b"\x80\x02}K\x01K\x02s.", "a key is no string"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x01sX\x01\x00\x00\x00aK\x01s.", "key 'a' is given twice"),
        (b"\x80\x02]K\x01a.", "the file holds no dictionary"),
        (b"\x80\x02}.", "expected a dictionary with 'format' = 'kvcanary-trace'"),
        (b"\x80\x02ccollections\nOrderedDict\n(K\x01tR.", "the pickle is damaged"),
    ],
)
def test_instructions_that_no_plain_dictionary_needs(
    tmp_path: Path, pickled: bytes, said: str
) -> None:
    assert said in _refused(_with_pickle(tmp_path / "a.pt", pickled))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_bare_pickle_is_refused(tmp_path: Path, protocol: int) -> None:
    ran = tmp_path / "ran"
    path = tmp_path / "a.pt"
    path.write_bytes(pickle.dumps(_Run(os.system, f"touch {ran}"), protocol=protocol))
    assert "found a bare pickle, which can run code when loaded" in _refused(path)
    assert not ran.exists()
    legacy = tmp_path / "b.pt"
    import torch

    torch.save({"format": "kvcanary-trace"}, legacy, _use_new_zipfile_serialization=False)
    assert "found a bare pickle" in _refused(legacy)


def test_other_torch_files_are_told_apart(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "a.pt"
    torch.save({"schema": "a-capture/1", "steps": [{"x": torch.arange(3)}]}, path)
    assert "expected a dictionary with 'format' = 'kvcanary-trace'" in _refused(path)
    torch.save({"format": "kvcanary-trace", "weights": torch.ones(3)}, path)
    assert "needs torch.FloatStorage" in _refused(path)
    torch.save(torch.nn.Linear(1, 1), path)
    assert "needs torch.nn.modules.linear.Linear" in _refused(path)


def test_a_dictionary_saved_with_another_protocol_is_read(tmp_path: Path) -> None:
    import torch

    header, events = small_trace()
    path = write_trace(tmp_path / "a.pt", header, events)
    state = torch.load(path, weights_only=True)
    for protocol in (2, 3, 4):
        torch.save(state, path, pickle_protocol=protocol)
        assert read_events(path) == events
    # Tensors that share a storage, and views into one.
    shared = torch.cat([state["kind"].to(torch.int64), state["i"].to(torch.int64)])
    torch.save(OrderedDict(state | {"kind": shared[:4], "i": shared[4:]}) | {}, path)
    torch.save(dict(state) | {"kind": shared[:4], "i": shared[4:]}, path)
    assert read_events(path) == events


def test_zip_archives_of_other_kinds(tmp_path: Path) -> None:
    header, events = small_trace()
    good = write_trace(tmp_path / "good.pt", header, events)
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "the archive has no data.pkl" in _refused(path)
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    assert "is compressed, expected what torch.save writes" in _refused(path)


def test_the_good_file_is_read(tmp_path: Path) -> None:
    header, events = small_trace()
    write_trace(tmp_path / "good.pt", header, events)
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
        pickled = archive.read(name)
    assert read_events(_with_pickle(tmp_path / "a.pt", pickled)) == events
    assert open_trace(tmp_path / "a.pt").header.engine_name == "synthetic"
