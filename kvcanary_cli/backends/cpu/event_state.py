"""What the kernels of a replay's events read and change: numbers of the cells of one block.

The block is an int64 array, whose cell 0 is not used. A cell holds an address or a number; numbers
that a kernel changes are read back by whoever runs it. Nothing here imports Numba.
"""

from __future__ import annotations

from enum import IntEnum, auto

#: Room of the lists that a kernel fills.
LIST_ROOM = 1 << 14
#: Instead of the request that runs in a row: the ledger knows nothing of the row.
NO_ROW = -2
#: Changes of tenant that the ledger keeps of each row.
RAN = 4


class State(IntEnum):
    """Cells of the block of a replay. An array's type is int64 unless it says otherwise."""

    TABLE = auto()  # [rows, row_len] int32
    ROWS = auto()
    ROW_LEN = auto()
    ROW_STAMPS = auto()  # [rows] number of the forward that last ran it or tried to
    SURE = auto()  # [rows] of its tokens, how many need no look when they are read
    CANARY = auto()  # [slots] lines of the cache: a canary row of HEAD, and one of TAIL
    SLOTS = auto()
    RECORDS = auto()  # [slots] ``LANE`` records; with a ledger ``OWNERSHIP`` records
    STAMP = auto()
    SERIAL = auto()
    # replay.known
    CHECKED = auto()
    TOKENS_KNOWN = auto()
    LIMITS = auto()
    AGAIN = auto()  # [rows] known cells that are looked at each time
    TENANTS = auto()
    KEEPS_READS = auto()  # whether records say who read a slot last
    ROW_READ = auto()
    READ_LEN = auto()
    # replay.history, replay.requests
    POOL = auto()  # [rows, row_len], 0 = no tokens are compared
    POOL_WIDTH = auto()
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
    NEW_REQUESTS = auto()  # [LIST_ROOM] requests that forwards named for the first time
    NEW_COUNT = auto()
    # The ledger; without one HAS_LEDGER is 0 and the rest is not read.
    HAS_LEDGER = auto()
    PAST = auto()  # [slots] ``PAST`` records
    WRITES = auto()  # [slots] ``WRITES`` records
    LEDGER_TENANTS = auto()  # [rows] code of who runs there, -1 = none, NO_ROW
    MAP_HEADS = auto()  # [rows] newest run of map events of each row, -1 = none
    BATCH_SLOTS = auto()  # [rows] slot that a batch row last decoded into
    BATCH_STEPS = auto()  # [rows] and the step
    RELEASED = auto()  # [rows, 2] event of the last row_release, and who gave the row back
    RAN = auto()  # [rows, RAN, 2] the last changes of tenant: code, event of the forward
    RAN_COUNT = auto()  # [rows] changes of tenant
    # Up to here the ledger's cells stay as they are for a whole replay.
    LEDGER_STEP = auto()
    STEPS_SEEN = auto()
    LAST_STEPS = auto()  # [codes]
    LAST_ALLOCS = auto()  # [codes]
    MAP_RUNS = auto()  # ``MAP_RUN`` records
    MAP_FREE = auto()  # first free one, -1 = none
    # replay.history, replay.prefixes
    HISTORY_NUMBERS = auto()
    STORE = auto()  # tokens of requests that no row holds
    ROW_REQ = auto()  # [rows] request that is bound to each row of the pool, -1 = none
    ENTRIES = auto()  # columns as in ``Entry``
    PLACES = auto()  # [places, 2] int32
    PREFIX_NUMBERS = auto()
    RETURNS = auto()  # [slots] int32
    TREE = auto()  # number of the tree among the requests
    # Lists for the ledger, with room for ``LIST_ROOM``.
    NEXT_CODE = auto()  # of the next name
    NAMED = auto()  # requests that got a code here
    NAMED_COUNT = auto()
    ENDED = auto()  # [room, 3] code of a request that ended, the event, steps seen until then
    ENDED_COUNT = auto()
    MATCHED = auto()  # [room, 3] code of a request, the event of its match, its row in the table
    MATCHED_COUNT = auto()
    # Whether anything besides owners depends on it: then it is for the general path.
    WATCHES_MATCHES = auto()
    WATCHES_ENTRIES = auto()


class Request(IntEnum):
    """Columns of the table of requests and other owners (``replay.requests``)."""

    HISTORY_LEN = 0
    HISTORY_ROW = 1  # row of the token pool that holds the history, -1 = none
    HISTORY_KNOWN = 2  # serial number of its history, 0 = there is none
    HISTORY_ENDED = 3
    GONE = 4  # it ended, and got no slots since
    TABLE_ROW = 5  # that it last ran in, -1 = none
    LEDGER_CODE = 6  # -1 = none
    SEEN = 7  # forwards named it
    STORE_AT = 8  # where its tokens begin that no row holds (``replay.token_store``), -1 = nowhere
    STORE_LEN = 9  # and for how many there is room
    ENDED_TOKENS = 10  # when it ended; and who ended before and after it, -1 = nobody
    ENDED_BEFORE = 11
    ENDED_AFTER = 12


class HistoryNumber(IntEnum):
    """Numbers that the histories keep (``replay.history``)."""

    ANY = 0  # any history was told
    SERIAL = 1  # of the newest
    STORE_USED = 2
    STORE_ROOM = 3
    ENDED_FIRST = 4  # requests whose tokens are kept though they ended, -1 = none
    ENDED_LAST = 5
    ENDED_COUNT = 6
    ENDED_TOKENS = 7
    KEEP_TOKENS = 8  # most of them that are kept


class Entry(IntEnum):
    """Columns of the table of the prefix index's entries (``replay.prefixes``)."""

    AT = 0  # its first place, -1 = the entry is not visible
    LEN = 1
    START = 2  # position of its first slot, and the slot before that one, -1 = head
    PREV = 3
    SERIAL = 4  # of its publication, and the event that did it, NEVER = not known
    EVENT = 5


class PrefixNumber(IntEnum):
    """Numbers that the prefix index keeps."""

    SERIAL = 0  # of the newest publication
    USED = 1  # places
    ROOM = 2
    UNPLACED = 3


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
    ENTRY_OF = auto()  # [strings] number of each prefix entry, -1 = not resolved
    OWN_FROM = auto()
    OWN_OWNER = auto()
    OWN_ENTRY = auto()  # -1 = none
    OWN_OFFSETS = auto()
    OWN_SLOTS = auto()
    FREE_OWNER = auto()
    FREE_REASON = auto()  # [frees] int32 code of the ledger
    FREE_OFFSETS = auto()
    FREE_SLOTS = auto()
    PUBLISH_ENTRY = auto()
    PUBLISH_REQ = auto()  # -1 = none
    PUBLISH_OFFSETS = auto()
    PUBLISH_SLOTS = auto()
    UNPUBLISH_ENTRY = auto()
    MATCH_REQ = auto()
    MATCH_OFFSETS = auto()
    MATCH_SLOTS = auto()
    FINISH_REQ = auto()
    ABORT_REQ = auto()
    RETRACT_REQ = auto()
    RELEASE_REQ = auto()
    RELEASE_ROW = auto()


class Kind(IntEnum):
    """Kinds of events as the kernel tells them apart."""

    OTHER = 0
    ALLOC = 1
    MAP = 2
    HISTORY = 3
    FORWARD = 4
    OWN = 5
    FREE = 6
    PUBLISH = 7
    UNPUBLISH = 8
    MATCH = 9
    FINISH = 10
    ABORT = 11
    RETRACT = 12
    ROW_RELEASE = 13


class Mode(IntEnum):
    """Forwards as the kernel tells them apart."""

    DECODE = 1
    EXTEND = 2


class Stop(IntEnum):
    """Why the kernel stopped before an event; the first number behind it says for what."""

    END = 0
    #: The event is for the general path.
    GENERAL = 1
    #: Another request runs in a row than the ledger knows: row, request.
    TENANT = 2
    #: A list is full: nothing.
    ROOM = 3
    #: The store of tokens is full: how many more.
    STORE_FULL = 4
    #: The places of the prefix index are full: how many more.
    PLACES_FULL = 5
