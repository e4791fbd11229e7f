"""What the kernels of a replay's events read and change: numbers of the cells of one block.

The block is an int64 array, whose cell 0 is not used. A cell holds an address or a number; numbers
that a kernel changes are read back by whoever runs it. Nothing here imports Numba.
"""

from __future__ import annotations

from enum import IntEnum, auto


class State(IntEnum):
    """Cells of the block of a replay. An array's type is int64 unless it says otherwise."""

    TABLE = auto()  # [rows, row_len] int32
    ROWS = auto()
    ROW_LEN = auto()
    ROW_STAMPS = auto()  # [rows] number of the forward that last ran it or tried to
    SURE = auto()  # [rows] of its tokens, how many need no look when they are read
    HEAD = auto()  # [slots] canary rows of 32 bytes
    TAIL = auto()
    SLOTS = auto()
    RECORDS = auto()  # [slots] ``LANE`` records, as in ``event_records``
    STAMP = auto()
    SERIAL = auto()
    # replay.known
    CHECKED = auto()
    TOKENS_KNOWN = auto()
    LIMITS = auto()
    AGAIN = auto()  # [rows] known cells that are looked at each time
    TENANTS = auto()
    READ_EVENTS = auto()  # 0 = not kept
    ROW_READ = auto()
    READ_LEN = auto()
    # replay.history, replay.requests
    POOL = auto()  # [rows, row_len], 0 = no tokens are compared
    POOL_WIDTH = auto()
    HAS_TOKENS = auto()  # whether any history was told
    REQUESTS = auto()
    # Counts
    KERNEL_RUNS = auto()  # [tags]
    SLOT_RUNS = auto()  # [tags]
    ENTRIES_VERIFIED = auto()
    ENTRIES_WRITTEN = auto()
    TOKEN_ENTRIES = auto()
    FORWARDS = auto()
    STEPS = auto()
    CHECKED_STEPS = auto()
    LAST_STEP = auto()
    LAST_CHECKED = auto()
    VERIFY_CAPACITY = auto()  # the largest int64 = none
    REQUEST_CAPACITY = auto()
    TOKEN_CAPACITY = auto()
    NEW_REQUESTS = auto()  # [room] requests that forwards named for the first time
    NEW_COUNT = auto()
    NEW_ROOM = auto()
    # The ledger; without one HAS_LEDGER is 0 and the rest is not read.
    HAS_LEDGER = auto()
    OWNERSHIP = auto()  # [slots] ``OWNERSHIP`` records
    WRITES = auto()  # [slots] ``WRITES`` records
    LEDGER_TENANTS = auto()  # [rows] code of who runs there, -2 = the ledger has no such row
    MAP_HEADS = auto()  # [rows] newest node of each row, -1 = none
    BATCH_SLOTS = auto()  # [rows] slot that a batch row last decoded into
    BATCH_STEPS = auto()  # [rows] and the step
    # Up to here the ledger's cells stay as they are for a whole replay.
    LEDGER_STEP = auto()
    STEPS_SEEN = auto()
    LAST_STEPS = auto()  # [codes]
    LAST_ALLOCS = auto()  # [codes]
    MAP_EVENTS = auto()  # [nodes]
    MAP_CELLS = auto()  # [nodes, 4] int32: start, stop, owner, next node
    MAP_FREE = auto()  # first free node, -1 = none


class Request(IntEnum):
    """Columns of the table of requests and other owners (``replay.requests``)."""

    HISTORY_LEN = 0
    HISTORY_ROW = 1  # row of the token pool that holds the history, -1 = none
    HISTORY_KNOWN = 2
    HISTORY_ENDED = 3
    GONE = 4  # it ended, and got no slots since
    TABLE_ROW = 5  # that it last ran in, -1 = none
    LEDGER_CODE = 6  # -1 = none
    SEEN = 7  # forwards named it


class Columns(IntEnum):
    """Cells of the block of a segment: its events, and the columns of the kinds taken here."""

    KINDS = auto()  # [events] bytes, a ``Kind``
    INDEX = auto()  # [events]
    ROWS = auto()  # [events] int32
    REQ_OF = auto()  # [strings] request of each string, -1 = not resolved
    ALLOC_OWNER = auto()  # int32, as all columns of strings
    ALLOC_OFFSETS = auto()
    ALLOC_SLOTS = auto()
    MAP_ROW = auto()
    MAP_START = auto()
    MAP_OFFSETS = auto()
    MAP_SLOTS = auto()
    HISTORY_REQ = auto()
    HISTORY_START = auto()
    HISTORY_OFFSETS = auto()
    HISTORY_IDS = auto()
    STEP = auto()
    MODE = auto()  # [forwards] bytes, a ``Mode``
    RAW_BS = auto()  # [forwards], -1 = not recorded
    REQ_OFFSETS = auto()
    REQS = auto()  # int32
    REQ_ROWS = auto()
    SEQ_LENS = auto()
    TOKEN_OFFSETS = auto()
    IDS = auto()
    POSITIONS = auto()
    LOCS = auto()
    EXTEND_OFFSETS = auto()  # of both columns of lengths
    PREFIX_LENS = auto()
    EXTEND_LENS = auto()


class Kind(IntEnum):
    """Kinds of events as the kernel tells them apart."""

    OTHER = 0
    ALLOC = 1
    MAP = 2
    HISTORY = 3
    FORWARD = 4


class Mode(IntEnum):
    """Forwards as the kernel tells them apart."""

    DECODE = 1
    EXTEND = 2


class Stop(IntEnum):
    """Why the kernel stopped before an event; the first number behind it says for what."""

    END = 0
    #: The event is for the general path.
    GENERAL = 1
    #: The history of a request must be bound to a row: row, request.
    BIND = 2
    #: The ledger has no code for a request: request.
    NAME = 3
    #: Another request runs in a row than the ledger knows: row, request.
    TENANT = 4
    #: A list is full: nothing.
    ROOM = 5
