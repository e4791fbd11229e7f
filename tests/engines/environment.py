"""Makes the environment of an engine from nothing; a finished one is used again."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Exit status of a setup where the package index does not offer the engine or cannot be reached:
#: nothing that this project could mend (``EX_UNAVAILABLE`` of sysexits.h).
UNAVAILABLE = 69
#: What kvcanary needs beside torch, and what builds it.
_OURS = (
    "typer>=0.15",
    "rich>=13.7",
    "pyyaml>=6",
    "numba>=0.61",
    "zstandard>=0.22",
    "hatchling",
    "editables",
)
_MARKER = ".ready"
#: What pip says, in lower case, where it is the index or the way there.
_NOT_OFFERED = (
    "no matching distribution found",
    "http error",
    "httperror",
    "max retries exceeded",
    "new connection",
    "connectionerror",
    "connection broken",
    "connection aborted",
    "connection reset",
    "name resolution",
    "timed out",
    "timeouterror",
    "proxyerror",
    "sslerror",
    "incompleteread",
    "not enough bytes received",
)
_SAID_LINES = 30


class UnavailableError(Exception):
    """The engine cannot be installed from here; the text says why."""


class SetupError(Exception):
    """The environment was not made, and it is not the index's fault; the text is what pip said."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine's environment, ``build/engines/ENGINE-VERSION``.

    Attributes:
        engine: Name of the engine.
        version: Its version.
        torch: The torch that kvcanary and the engine use, a requirement.
        steps: Arguments of pip, one call each, in order, after torch.
    """

    engine: str
    version: str
    torch: str
    steps: tuple[tuple[str, ...], ...]

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "engines" / f"{self.engine}-{self.version}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def is_ready(self) -> bool:
        """Whether an environment of just these packages is there."""
        marker = self.folder / _MARKER
        return marker.is_file() and marker.read_text() == self._wanted()

    def set_up(self) -> None:
        """Make the environment unless it is there.

        Raises:
            UnavailableError: The index does not offer a package, or cannot be reached.
            SetupError: pip failed otherwise.
        """
        if self.is_ready():
            return
        venv.create(self.folder, with_pip=True, clear=True)
        self._pip("install", self.torch)
        if list(self.folder.glob("lib/*/site-packages/nvidia*")):
            raise UnavailableError(
                f"the package index has no CPU build of {self.torch}; give pip an index that does "
                "(PIP_EXTRA_INDEX_URL), or a folder with such a wheel (PIP_FIND_LINKS)"
            )
        for step in self.steps:
            self._pip(*step)
        self._pip("install", *_OURS)
        self._pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
        (self.folder / _MARKER).write_text(self._wanted())

    def _wanted(self) -> str:
        return "\n".join([self.torch, *(" ".join(step) for step in self.steps), *_OURS, ""])

    def _pip(self, command: str, *args: str) -> None:
        words = [str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check", command]
        if command == "install":
            # Most of what is installed is never imported: compiling it would take longer.
            words += ["--no-cache-dir", "--no-compile", "--prefer-binary"]
        done = subprocess.run(
            [*words, *args],
            env={**os.environ, "PIP_RETRIES": "2"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        said = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        for line in reversed(said):
            if any(words in line.lower() for words in _NOT_OFFERED):
                raise UnavailableError(line.removeprefix("ERROR: "))
        raise SetupError("\n".join([f"pip {command} failed:", *said[-_SAID_LINES:]]))


def main(environment: Environment) -> None:
    """Set up, and say how it went: the interpreter's path, or why there is none.

    Ends the process with ``UNAVAILABLE`` or 1 where there is none.
    """
    name = f"{environment.engine} {environment.version}"
    try:
        environment.set_up()
    except UnavailableError as error:
        sys.stderr.write(f"{name} cannot be installed here: {error}\n")
        sys.exit(UNAVAILABLE)
    except SetupError as error:
        sys.exit(f"{name}: {error}")
    sys.stdout.write(f"{environment.python}\n")
