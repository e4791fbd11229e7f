"""The recorder: writes the trace of a running engine (docs/recording.md).

``session`` and what it rests on know no engine; each engine has a package of its own beside them
(``sglang``). Nothing here imports torch, numpy or an engine when it is imported: the recorder is
loaded at the start of every process of a server, most of which it then leaves alone.
"""

from __future__ import annotations
