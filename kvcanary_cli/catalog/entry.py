"""One entry of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from kvcanary_cli.catalog.template import Template

if TYPE_CHECKING:
    from collections.abc import Mapping


class Severity(StrEnum):
    """How grave a message is."""

    FATAL = "fatal"
    ERROR = "error"
    VIOLATION = "violation"
    WARNING = "warning"
    INFO = "info"


class Phase(StrEnum):
    """When in a server's life a message appears."""

    SETTINGS = "settings"
    INSTALL = "install"
    CAPTURE = "capture"
    LAUNCH = "launch"
    FORWARD = "forward"
    DEVICE = "device"
    SWEEP = "sweep"
    REPORT = "report"
    NEVER = "never"

    @property
    def words(self) -> str:
        """The phase as a phrase."""
        return _PHASE_WORDS[self]


_PHASE_WORDS = {
    Phase.SETTINGS: "at start-up, while the settings are read",
    Phase.INSTALL: "at start-up, while the canary is installed on a model runner",
    Phase.CAPTURE: "at start-up, while graphs are captured",
    Phase.LAUNCH: "before a kernel is launched, as a rule at the first forward",
    Phase.FORWARD: "at any forward",
    Phase.DEVICE: "on the device, in the middle of a forward",
    Phase.SWEEP: "at any sweep, the first one included",
    Phase.REPORT: "after a forward, at least one step late",
    Phase.NEVER: "in no released server",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A remark for messages in which a field has a certain value.

    Attributes:
        field: Placeholder of the message.
        matches: Regular expression that is searched in the field's value.
        say: The remark.
    """

    field: str
    matches: str
    say: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the catalogue knows about one message.

    ``do``, ``meaning`` and the example may hold placeholders; see :mod:`kvcanary_cli.catalog.fill`.

    Attributes:
        code: ``KVC-A01`` and so on; never reused.
        title: What it means, in one line without a full stop.
        raised_as: Type of the exception, or how it is logged.
        first: First release known to have it, or None if earlier ones were not compared.
        last: Last release known to have it, or None if no release has it.
        message: The text with ``{name}`` placeholders, as it is shown.
        template: What is matched; differs from ``message`` only where that carries a remark.
        fields: Type of each placeholder.
        whole: Whether the text is too common to be looked for inside other text.
        variant_of: Code of the entry whose text this one was in another release.
        values: Words that are the same for all messages of this entry.
        related: Codes of related entries.
    """

    code: str
    title: str
    severity: Severity
    raised_as: str
    phase: Phase
    first: str | None
    last: str | None
    message: str
    template: str
    fields: Mapping[str, str]
    whole: bool
    variant_of: str | None
    values: Mapping[str, str]
    meaning: tuple[str, ...]
    when: tuple[str, ...]
    do: tuple[str, ...]
    cases: tuple[Case, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    related: tuple[str, ...]

    @cached_property
    def matcher(self) -> Template:
        """The message as something that can be searched for."""
        return Template.parse(self.template, self.fields)

    @property
    def family(self) -> str:
        """The code that stands for all texts of the same message."""
        return self.variant_of or self.code

    @property
    def versions(self) -> str:
        """The releases with this text, as a phrase."""
        if self.last is None:
            return "no release"
        if self.first is None:
            return f"{self.last}, earlier releases not compared"
        return self.last if self.first == self.last else f"{self.first} to {self.last}"
