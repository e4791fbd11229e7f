"""Make the environment that the SGLang tests run in: ``build/engines/sglang-VERSION``.

    python tests/engines/setup_sglang.py [FOLDER]

Prints the interpreter's path on the last line; a finished environment is used again. SGLang is
installed without its dependencies, because those ask for a GPU build of everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

SGLANG = "0.5.23"
TORCH = "torch==2.13.0"
ROOT = Path(__file__).parents[2]
_MARKER = ".ready"
_PACKAGES = [
    "numpy",
    "orjson",
    "psutil",
    "pybase64",
    "requests",
    "triton",
    "packaging",
    "pillow",
    "msgspec",
    "pydantic",
    "pyzmq",
    "tqdm",
    "ipython",
    "aiohttp",
    "transformers==5.19.0",
    "tokenizers==0.23.2",
    "fastapi",
    "uvicorn",
    "uvloop",
    "einops",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "python-multipart",
    "partial_json_parser",
    "compressed-tensors==0.18.0",
    "openai==2.8.0",
    "gguf",
    "dill",
    "apache-tvm-ffi==0.1.11",
    "xgrammar==0.2.7",
    # Builds the n-gram corpus on first use, with a C++ compiler.
    "ninja",
    # Imported by `python -m sglang.launch_server` alone.
    "jsonschema",
    "soundfile",
]
_OURS = ("typer>=0.15", "rich>=13.7", "pyyaml>=6", "numba>=0.61", "zstandard>=0.22")
_BUILD = ("hatchling", "editables")


def default_folder() -> Path:
    return ROOT / "build" / "engines" / f"sglang-{SGLANG}"


def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_ready(folder: Path) -> bool:
    """Whether an environment of just these packages is there."""
    marker = folder / _MARKER
    return marker.is_file() and marker.read_text() == _wanted()


def _wanted() -> str:
    return "\n".join([TORCH, f"sglang=={SGLANG}", *_PACKAGES, *_OURS, *_BUILD, ""])


def set_up(folder: Path) -> Path:
    """Make the environment unless it is there; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: A package did not install.
    """
    python = interpreter(folder)
    if is_ready(folder):
        return python
    venv.create(folder, with_pip=True, clear=True)

    def pip(*args: str) -> None:
        # Most of what is installed is never imported: compiling it would be the longer part.
        options = ["--quiet", "--no-cache-dir", "--no-compile"]
        command = [str(python), "-m", "pip", "install", *options, *args]
        subprocess.run(
            command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        )

    pip(TORCH)
    pip("--no-deps", f"sglang=={SGLANG}")
    pip(*_PACKAGES, *_OURS, *_BUILD)
    pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
    (folder / _MARKER).write_text(_wanted())
    return python


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default_folder()
    sys.stdout.write(f"{set_up(folder)}\n")


if __name__ == "__main__":
    main()
