"""Turn a recording of a real engine into a kvcanary trace.

    python tests/tools/convert_capture.py IN.pt OUT.{jsonl,jsonl.zst,pt,kvtrace} [STATE.npz]

With STATE.npz, the final state of the engine's own canary goes there (see ``engine_state``).

IN is a dictionary written by ``torch.save`` that loads with ``weights_only=True``, of schema
``sglang-forward-capture/1`` or ``vllm-step-capture/1``.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvcanary_cli.errors import EXIT_INPUT, EXIT_USAGE, InputError, KvCanaryError
from kvcanary_cli.trace.writer import open_writer
from tests.tools import capture_sglang, capture_vllm
from tests.tools.engine_state import engine_state, save_engine_state

USAGE = "usage: convert_capture.py IN.pt OUT.{jsonl,jsonl.zst,pt,kvtrace} [STATE.npz]"

CONVERTERS = {
    "sglang-forward-capture/1": capture_sglang.convert,
    "vllm-step-capture/1": capture_vllm.convert,
}


def load_capture(path: Path) -> dict[str, Any]:
    """Load a capture; messages do not name the file.

    Raises:
        InputError: The file is missing, not loadable without running code, or no dictionary.
    """
    import torch

    try:
        capture = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise InputError("no such file") from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        raise InputError(f"not a capture: {str(error).splitlines()[0]}") from error
    if not isinstance(capture, dict):
        raise InputError(f"expected a dictionary, found {type(capture).__name__}")
    return capture


def convert(capture: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and numbered events of a capture of either engine.

    Raises:
        InputError: The schema is unknown, a field is missing, or the capture contradicts itself.
    """
    schema = capture.get("schema")
    if schema not in CONVERTERS:
        raise InputError(
            f"capture of schema {schema!r}, expected one of {', '.join(map(repr, CONVERTERS))}",
            hint="record again with a recorder of one of these schemas",
        )
    try:
        header, events = CONVERTERS[schema](capture)
    except KeyError as error:
        raise InputError(f"capture of schema {schema!r} lacks {error.args[0]!r}") from error
    return header, [
        {"kind": event["kind"], "i": i} | {k: v for k, v in event.items() if k != "kind"}
        for i, event in enumerate(events)
    ]


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    source, target, *state = map(Path, argv)
    try:
        capture = load_capture(source)
        header, events = convert(capture)
        with open_writer(target, header) as writer:
            for event in events:
                writer.write_event(event)
        for path in state:
            save_engine_state(engine_state(capture), path)
    except KvCanaryError as error:
        print(f"error: {source}: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"help: {error.hint}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(f"{target}: {len(events)} events", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
