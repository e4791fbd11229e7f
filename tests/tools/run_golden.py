"""Hold backends to a folder of golden files.

    python tests/tools/run_golden.py DIR [--backend reference|cpu|triton|all]

A golden ``.pt`` is a dict of plain values and tensors with ``schema``
``sglang-kv-canary-golden/1`` and ``ops``, a list of ``{op, step, note, in, out}``: the inputs of
one plan, verify or write and the outputs of the public package's host reference. Beside them may
lie ``capacities.json`` (launch capacities) and ``errors.json`` (error texts). One line a file and
backend; exit status 0 all equal, 1 a difference, 2 wrong usage, 4 nothing to read or unreadable.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.tools.triton_mode import use_interpreter_without_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.backends.interface import Backend

SCHEMAS = {
    ".pt": "sglang-kv-canary-golden/1",
    "capacities.json": "sglang-kv-canary-capacities/1",
    "errors.json": "sglang-kv-canary-errors/1",
}
BACKENDS = ("reference", "cpu", "triton")
EXIT_EQUAL, EXIT_DIFFERENT, EXIT_USAGE, EXIT_UNREADABLE = 0, 1, 2, 4


class UnreadableError(Exception):
    """A golden file that can't be read as one."""


@dataclass(frozen=True)
class Result:
    """What one file showed on one backend."""

    file: str
    backend: str
    checked: str
    """What was compared, such as ``25 ops``."""
    difference: str | None
    """The first difference in words, None = equal."""

    def __str__(self) -> str:
        verdict = "ok" if self.difference is None else f"DIFFERENT: {self.difference}"
        return f"{self.file}  {self.backend}  {self.checked}  {verdict}"


def check_golden_file(path: Path, backend: Backend) -> Result:
    """Run every operation of a golden file.

    Raises:
        UnreadableError: Not a golden file.
    """
    from tests.tools.canary_ops import first_difference, run_op

    ops = _read_golden(path)
    difference = None
    for number, op in enumerate(ops):
        try:
            name, inputs, want = op["op"], op["in"], op["out"]
            got = run_op(backend, name, inputs)
        except (KeyError, TypeError) as error:
            raise UnreadableError(f"{path.name}: op {number}: {error!r}") from error
        except ValueError as error:
            difference = f"op {number} ({name}): raised {error}"
            break
        want = {**want, "fault": got["fault"].new_zeros(1)}
        text = first_difference(name, inputs, want, got, in_order=backend.name != "triton")
        if text:
            difference = f"op {number} ({name}, step {op.get('step')}): {text}"
            break
    return Result(path.name, backend.name, f"{len(ops)} ops", difference)


def _read_golden(path: Path) -> list[dict[str, Any]]:
    import torch

    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler met
        raise UnreadableError(f"{path.name}: {error}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMAS[".pt"] or not isinstance(content.get("ops"), list):
        raise UnreadableError(f"{path.name}: schema {schema!r}, expected {SCHEMAS['.pt']!r}")
    return content["ops"]


def _read_cases(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema, cases = content["schema"], content["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(f"{path.name}: {error!r}") from error
    if schema != SCHEMAS[path.name]:
        raise UnreadableError(f"{path.name}: schema {schema!r}, expected {SCHEMAS[path.name]!r}")
    return cases


def check_capacities(path: Path) -> Result:
    """Compute every case of ``capacities.json``.

    Raises:
        UnreadableError: Not such a file.
    """
    cases = _read_cases(path)
    difference = None
    for number, case in enumerate(cases):
        want = case["error"] if case.get("error") else case["output"]
        got = _capacities_of(case["inputs"])
        if got != want:
            difference = f"case {number}: expected {want}, got {got}"
            break
    return Result(path.name, "-", f"{len(cases)} cases", difference)


def _capacities_of(inputs: dict[str, Any]) -> dict[str, Any] | str:
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities

    given = dict(inputs)
    max_bs = given.pop("cuda_graph_decode_max_bs")
    if not given.pop("cuda_graph_config_present"):
        max_bs = None
    try:
        capacities = CanaryLaunchCapacities.from_args(**given, cuda_graph_max_bs=max_bs)
    except ValueError as error:
        return str(error)
    return {
        "per_forward_verify_capacity": capacities.per_forward_verify_capacity,
        "per_forward_write_req_capacity": capacities.per_forward_write_req_capacity,
        "per_forward_write_entry_capacity": capacities.per_forward_write_entry_capacity,
        "per_forward_workspace_bytes": {
            str(groups): capacities.workspace_bytes(groups) for groups in (1, 2)
        },
    }


def check_errors(path: Path, backend: Backend) -> Result:
    """Provoke every error text of ``errors.json``.

    Raises:
        UnreadableError: Not such a file.
    """
    from tests.tools.error_cases import provoke

    cases = _read_cases(path)
    difference = None
    for number, case in enumerate(cases):
        want = (case["error_type"], case["error"])
        if want[1] is not None and backend.device != "cpu":
            # On a GPU the public launcher speaks for itself, not for its host reference.
            want = (want[0], want[1].replace("_torch_reference", ""))
        got: tuple[str | None, str | None] = (None, None)
        try:
            provoke(backend, case["what"], case["args"])
        except (ValueError, TypeError) as error:
            got = (type(error).__name__, str(error))
        except KeyError as error:
            raise UnreadableError(f"{path.name}: case {number}: {error!r}") from error
        if got != want:
            difference = f"case {number} ({case['what']}): expected {want}, got {got}"
            break
    return Result(path.name, backend.name, f"{len(cases)} cases", difference)


def check_folder(folder: Path, backends: list[Backend]) -> Iterator[Result]:
    """Check every golden file of a folder on every backend.

    Raises:
        UnreadableError: No golden file there, or one that is none.
    """
    files = sorted(folder.glob("*.pt"))
    extras = [path for name in SCHEMAS if (path := folder / name).is_file()]
    if not files and not extras:
        raise UnreadableError(f"{folder}: no golden files (*.pt, capacities.json, errors.json)")
    for path in files:
        for backend in backends:
            yield check_golden_file(path, backend)
    for path in extras:
        if path.name == "capacities.json":
            yield check_capacities(path)
        else:
            for backend in backends:
                yield check_errors(path, backend)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--backend", choices=(*BACKENDS, "all"), default="all")
    args = parser.parse_args(argv)

    use_interpreter_without_gpu()
    from kvcanary_cli.backends import get_backend

    names = BACKENDS if args.backend == "all" else (args.backend,)
    status = EXIT_EQUAL
    try:
        for result in check_folder(args.folder, [get_backend(name) for name in names]):
            print(result, flush=True)
            if result.difference is not None:
                status = EXIT_DIFFERENT
    except UnreadableError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    return status


if __name__ == "__main__":
    sys.exit(main())
