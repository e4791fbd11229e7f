"""Reading at a bounded footprint, from files and from stdin, without heavy imports."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from kvcanary_cli.trace.convert import convert
from tests.trace.helpers import jsonl_text, small_trace, write_jsonl, write_trace

_ROOT = Path(__file__).parents[2]
_TOKENS = 3_000_000
_CHUNK_TOKENS = 8192


def _python(code: str, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Standard output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def big_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL trace of three million tokens, in prefill chunks of 8192."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    rng = random.Random(5)
    pool = {"slots": 400_000, "rows": 3, "row_len": _CHUNK_TOKENS}
    header = small_trace()[0] | {"pool": pool}
    slots = json.dumps([rng.randrange(1, 400_000) for _ in range(_CHUNK_TOKENS)])
    ids = json.dumps([rng.randrange(1 << 40) for _ in range(_CHUNK_TOKENS)])
    positions = json.dumps(list(range(_CHUNK_TOKENS)))
    with path.open("w") as file:
        file.write(json.dumps(header) + "\n")
        for step in range(-(-_TOKENS // _CHUNK_TOKENS)):
            file.write(
                f'{{"kind": "forward", "i": {step}, "step": {step}, "forward_mode": "EXTEND", '
                f'"reqs": ["r{step}"], "req_pool_indices": [1], "seq_lens": [{_CHUNK_TOKENS}], '
                f'"input_ids": {ids}, "positions": {positions}, "out_cache_loc": {slots}, '
                f'"extend_prefix_lens": [0], "extend_seq_lens": [{_CHUNK_TOKENS}]}}\n'
            )
    return path


_MEASURE = """
import gc, sys, tracemalloc
from pathlib import Path
from kvcanary_cli.trace.reader import open_trace
if not sys.argv[1].endswith(".jsonl"):
    tracemalloc.start()
reader = open_trace(sys.argv[1])
most_objects = 0
for segment in reader.segments():
    most_objects = max(most_objects, sum(map(len, (segment.strings, gc.get_objects()))))
peak = tracemalloc.get_traced_memory()[1]
if not tracemalloc.is_tracing():
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
print(reader.checked.tokens, peak, most_objects)
"""


# Widened, the trace is 72 MB of arrays, and over 200 MB as Python integers. A segment is 8 MiB;
# its building, its checking and its predecessor take a few times that. The pages of a memory map
# belong to the page cache, so the mapped forms are held to what is allocated, and JSONL, where
# tracing every parsed integer takes too long, to the whole process, interpreter included.
@pytest.mark.parametrize(
    ("suffix", "limit_mib"),
    [
        pytest.param(
            ".jsonl",
            130,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status"),
        ),
        (".pt", 56),
        (".kvtrace", 56),
    ],
)
def test_memory_does_not_grow_with_the_trace(big_trace: Path, suffix: str, limit_mib: int) -> None:
    path = big_trace.with_suffix(suffix)
    if suffix != ".jsonl":
        convert(big_trace, path)
    tokens, peak_bytes, objects = map(int, _python(_MEASURE, str(path)).split())
    assert tokens >= _TOKENS
    assert peak_bytes < limit_mib << 20
    assert objects < 100_000


def test_reading_imports_neither_torch_nor_zstandard(tmp_path: Path) -> None:
    header, events = small_trace()
    jsonl = write_jsonl(tmp_path / "a.jsonl", header, events)
    pt = write_trace(tmp_path / "a.pt", header, events)
    code = """
import sys
import pkgutil, importlib, kvcanary_cli.trace
for module in pkgutil.iter_modules(kvcanary_cli.trace.__path__):
    importlib.import_module(f"kvcanary_cli.trace.{module.name}")
import kvcanary_cli.cli.trace
from kvcanary_cli.trace.reader import open_trace
for path in sys.argv[1:]:
    assert sum(map(len, open_trace(path).segments())) == 4
print(sorted({"torch", "zstandard", "numba", "triton"} & set(sys.modules)))
"""
    assert _python(code, str(jsonl), str(pt)).strip() == b"[]"


_FROM_STDIN = """
import json, sys
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import open_trace
try:
    reader = open_trace("-")
    events = [event for segment in reader.segments() for event in segment.events()]
    out = {"name": reader.name, "events": events, "read": reader.bytes_read}
    out["sha256"] = reader.sha256()
    try:
        next(reader.segments())
    except TraceError as error:
        out["again"] = error.message
except TraceError as error:
    out = {"error": error.message}
print(json.dumps(out))
"""


@pytest.mark.parametrize("compressed", [False, True])
def test_stdin_is_read_once(compressed: bool) -> None:
    header, events = small_trace()
    data = jsonl_text(header, events).encode()
    if compressed:
        half = len(data) // 2
        # Two frames, as `cat a.zst b.zst` gives them.
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    out = json.loads(_python(_FROM_STDIN, stdin=data))
    assert out["events"] == events
    assert out["name"] == "<stdin>"
    assert out["sha256"] == hashlib.sha256(data).hexdigest()
    assert out["read"] == len(data)
    assert "can be read only once" in out["again"]


def test_a_named_pipe_is_read_like_stdin(tmp_path: Path) -> None:
    header, events = small_trace()
    path = tmp_path / "a.jsonl"
    os.mkfifo(path)
    data = jsonl_text(header, events).encode()
    with subprocess.Popen(
        ["tee", str(path)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as tee:
        assert tee.stdin is not None
        tee.stdin.write(data)
        tee.stdin.close()
        out = json.loads(_python(_FROM_STDIN.replace('"-"', repr(str(path)))))
    assert out["events"] == events
    assert out["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "<stdin>: the file is empty"),
        (b"PK\x03\x04....", "<stdin>: found a .pt trace, expected JSONL"),
        (b'{"kind": "alloc"}\n', "<stdin>:1: the header is missing"),
        (zstandard.compress(b"x" * 1000)[:-3], "<stdin>: the zstd data ends in the middle"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, "<stdin>: the zstd data is damaged"),
    ],
)
def test_stdin_that_is_no_trace(data: bytes, said: str) -> None:
    assert said in json.loads(_python(_FROM_STDIN, stdin=data))["error"]


def test_a_zstd_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    block = b" " * (1 << 20)
    with path.open("wb") as file:
        file.write(compressor.compress(jsonl_text(*small_trace()).encode()))
        for _ in range(1 << 10):
            file.write(compressor.compress(block))
        file.write(compressor.flush())
    assert path.stat().st_size < 1 << 18
    code = """
import sys, tracemalloc
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import open_trace
tracemalloc.start()
try:
    list(open_trace(sys.argv[1]).segments())
except TraceError as error:
    print(tracemalloc.get_traced_memory()[1], error.message)
"""
    peak, _, message = _python(code, str(path)).decode().partition(" ")
    assert "a.jsonl.zst:6: the line is longer than 64 MiB" in message
    assert int(peak) < 512 << 20


def test_progress_ends_at_the_whole_file(tmp_path: Path) -> None:
    from kvcanary_cli.trace.reader import open_trace

    header, events = small_trace()
    for suffix in (".jsonl", ".jsonl.zst", ".pt", ".kvtrace"):
        reader = open_trace(write_trace(tmp_path / f"a{suffix}", header, events))
        assert reader.bytes_total
        for _ in range(2):
            for _ in reader.segments():
                pass
            assert reader.bytes_read == reader.bytes_total
    path = tmp_path / "a.jsonl"
    assert open_trace(path).sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
