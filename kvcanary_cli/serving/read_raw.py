"""What readers hand over before the version is known: options as they are spelled, and troubles.

Which option a spelling means, and of which type it is, depends on the server's version, and the
version may stand in another source. So readers only take their source apart;
``serving.read_options`` interprets the parts once all sources have been read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kvcanary_cli.errors import InputError

if TYPE_CHECKING:
    from kvcanary_cli.serving.observed import Observations
    from kvcanary_cli.serving.values import Given, Place

Form = Literal["yaml", "command"]
YamlTag = Literal["null", "bool", "int", "float", "str", "list", "map"]

MAX_SOURCE_BYTES = 1 << 31
#: A YAML file, script or JSON of more than this is none.
MAX_CONFIG_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class RawScalar:
    """One value of a YAML file.

    Attributes:
        text: As it stands in the file, without quotes.
        tag: What YAML makes of it.
        value: The Python value that YAML makes of it.
        place: Where it begins.
    """

    text: str
    tag: YamlTag
    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class RawOption:
    """An option as it was spelled.

    Attributes:
        name: Its name without leading dashes, as it was spelled.
        form: ``yaml`` (value has a YAML type) or ``command`` (words).
        values: Values in order: ``RawScalar`` of a YAML file, or words of a command line.
        is_list: Whether the YAML value is a list.
        inline: Whether the value was joined with ``=``.
        place: Where the name stands.
        group: Which file or launch command it belongs to; an option may stand twice in different
            groups, and twice in a command line.
    """

    name: str
    form: Form
    values: tuple[Any, ...]
    place: Place
    is_list: bool = False
    inline: bool = False
    group: str = ""

    @property
    def shown(self) -> str:
        """The option as a message names it."""
        if self.form == "yaml":
            return f"'{self.name}'"
        return self.name if self.name.startswith("-") else f"--{self.name}"


@dataclass(frozen=True, slots=True)
class RawEnv:
    """An environment variable that a script, a command or a container definition sets."""

    name: str
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that must be corrected; ``help`` is the next step."""

    place: Place
    text: str
    help: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" + (f" ({self.help})" if self.help else "")


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning about the input that stops nothing."""

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return one_line(self.text if self.place is None else f"{self.place}: {self.text}")


@dataclass(slots=True)
class RawReading:
    """All that one source said.

    Attributes:
        name: The source, for messages.
        kind: ``yaml``, ``command``, ``log``, ``server-info`` or ``--set``.
        items: Options and environment variables in order of effect.
        given: What was stated outright (logs, server-info).
        problems: What must be corrected.
        notices: Warnings.
        observed: What a log or a server-info shows of the load.
        version: Version that the source states, with its place.
        newest_version: Newest version that writes like this, with the reason; None = any.
        oldest_version: Oldest version that writes like this, with the reason; None = any.
    """

    name: str
    kind: str
    items: list[RawOption | RawEnv] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    observed: Observations | None = None
    version: tuple[str, Place] | None = None
    newest_version: tuple[str, str] | None = None
    oldest_version: tuple[str, str] | None = None

    def problem(self, place: Place, text: str, help: str = "") -> None:
        self.problems.append(Problem(place, text, help))

    def notice(self, text: str, place: Place | None = None) -> None:
        self.notices.append(Notice(text, place))


def one_line(text: str) -> str:
    """``text`` with control characters and line breaks as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def problems_error(problems: list[Problem]) -> InputError:
    """One error for all problems, one a line, each once."""
    lines = list(dict.fromkeys(one_line(str(problem)) for problem in problems))
    if len(lines) == 1:
        only = problems[0]
        return InputError(one_line(f"{only.place}: {only.text}"), hint=one_line(only.help) or None)
    return InputError(f"{len(lines)} problems in the input:\n" + "\n".join(lines))
