"""From a key to its partition: the same in every process, every language and every year.

    key --murmur3_x86_32, seed 0--> 32 bits --mod S--> slot --mod M--> partition
    a number, from 0 to M - 1 ---------------------------------------> the partition itself

**Text is a key, also "42". A number is a partition.** This is the one rule for Python, the command line, HTTP and
Airflow; a *role* is either. Text that stands for a number has a name of its own there: `partition`.

Members that disagreed here would each act correctly for a different partition, so nothing in this chain may depend on
the process. The hash is fixed and unseeded (Python's own `hash` of a text differs between interpreters), text counts as
its UTF-8 bytes, and S, M and the tag rule form a `Layout` that the ledger records when it is created.

There are slots between the hash and the partition so that data stored by slot survives a move to a group with another
M.

Murmur3 comes from mmh3 5. Its `hash` crashes the whole process with a segmentation fault when a text contains a lone
surrogate (`json.loads` produces one from the six characters \\ud800). So text is never passed to it unless it is known
to be ASCII, which Python answers from a flag in the string's header, or we have encoded it.
"""

from collections.abc import Callable, Iterable

import mmh3
import msgspec

from neli_router.errors import BadKey, ConfigError

__all__ = ["PARTITIONS", "SLOTS", "SLOTS_MAX", "Key", "Layout", "Role", "hasher", "numbered", "spelled", "utf8"]

SLOTS = 16384
"""Redis Cluster's number: small enough for a flat table, large enough for 4096 partitions of four slots each."""

PARTITIONS = 256
"""More partitions balance more finely but need a longer table; fewer partitions than members leave members idle."""

SLOTS_MAX = 2**32
"""The hash has 32 bits, so a slot above that would always stay empty."""

DIGITS_MAX = 18
"""Python is slow to parse very long numbers."""

SPELLED_MAX = 12
"""The maximum number of runs of partitions in a line. A line with a thousand numbers is unreadable."""

Key = str | bytes
Role = int | str | bytes


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How keys map to slots and slots to partitions. Fixed for a group's life; may be shared between threads.

    With `tags`, only the part of a key between its first `{` and the first `}` after it is hashed, if there is such a
    part, so that `{customer-7}orders` and `{customer-7}invoices` land together. This is off by default: a brace that
    merely happens to be in a key would silently put unrelated keys into one slot.
    """

    slots: int = SLOTS
    partitions: int = PARTITIONS
    tags: bool = False

    def __post_init__(self) -> None:
        sizes = {"slots": self.slots, "partitions": self.partitions}
        problems = [
            f"{name}={size!r} must be a whole number of at least 1"
            for name, size in sizes.items()
            if not _is(int, size) or size < 1
        ]
        if not problems and self.partitions > self.slots:
            problems.append(
                f"partitions={self.partitions} must be at most slots={self.slots}, or the partitions above would "
                "never own a key: raise slots or lower partitions"
            )
        if _is(int, self.slots) and self.slots > SLOTS_MAX:
            problems.append(f"slots={self.slots} must be at most {SLOTS_MAX}, all that a 32-bit hash can fill")
        if not _is(bool, self.tags):
            problems.append(f"tags={self.tags!r} must be True or False")
        if problems:
            raise ConfigError(problems)

    def slot(self, key: Key) -> int:
        """The slot of `key`, from 0 to `slots` - 1; the same for a text and its UTF-8 bytes. Raises BadKey."""
        whole = utf8(key)
        return mmh3.hash(_tag(whole) if self.tags else whole, 0, signed=False) % self.slots

    def partition_of_slot(self, slot: int) -> int:
        return slot % self.partitions

    def partition(self, key: Key) -> int:
        """The partition of `key`: its owner owns the key. Raises BadKey."""
        return self.slot(key) % self.partitions

    def partition_of_role(self, role: Role) -> int:
        """The partition of `role`: a key, or the number of a partition. Raises BadKey."""
        if isinstance(role, str | bytes):
            return self.partition(role)
        if _is(bool, role) or not isinstance(role, int):
            raise BadKey(
                "a role was wanted: a key as str or bytes, or the number of a partition",
                f"found {_described(role)}",
                "pass the key or the number itself",
            )
        if not 0 <= role < self.partitions:
            raise BadKey(
                f"a partition was wanted, from 0 to {self.partitions - 1}",
                "this number is none of them",
                f"pass a key as text, such as str(number), or give each number a partition: number % {self.partitions}",
            )
        return role

    def spelled(self) -> str:
        """The layout in words, for error messages."""
        return f"slots={self.slots}, partitions={self.partitions}, tags={'on' if self.tags else 'off'}"

    def difference(self, other: "Layout") -> str:
        """Both layouts spelled out, this one first, and what differs; empty if nothing does."""
        unequal = [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]
        if not unequal:
            return ""
        return f"{self.spelled()} against {other.spelled()} (unequal: {', '.join(unequal)})"


def numbered(text: str) -> int:
    """The number of a partition, where it can only be written as text. Raises BadKey."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise BadKey("the number of a partition was wanted", "this text is none", "write digits only, or name a key")
    return int(text)


def hasher(layout: Layout) -> Callable[[Key], int]:
    """`layout.slot`, specialised for one layout: the same slots and the same BadKey in half the time."""
    hash_32, careful = mmh3.hash, layout.slot
    if layout.tags or SLOTS_MAX % layout.slots:
        return careful
    # S divides 2**32 only if it is a power of two, and then mod S keeps the lowest bits. Python's `&` treats a negative
    # number as two's complement, where these bits are the same as in the unsigned number. So the signed hash will do,
    # and mmh3 returns that faster.
    mask = layout.slots - 1

    def slot(key: Key) -> int:
        try:
            if key.isascii():
                return hash_32(key) & mask
        except (AttributeError, TypeError):
            pass  # Not a key. BadKey is raised outside this block, or it would carry this error as its context.
        return careful(key)

    return slot


def _is(kind: type, value: object) -> bool:
    """Exactly this type: to Python, True is an int, so it would pass for a layout of one slot, or for role 1."""
    return type(value) is kind


def utf8(key: object) -> bytes:
    """The bytes that are hashed for `key`. Raises BadKey."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            pass  # BadKey is raised below, not here: this error holds the key, and would become the context of ours.
    raise BadKey(
        "a key was wanted: bytes, or a str that has a UTF-8 form",
        f"found {_described(key)}",
        "encode the value the same way in every program of the group, such as str(number) or bytes(buffer)",
    )


def spelled(partitions: Iterable[int]) -> str:
    """Partitions as people write them: `0-7,9`."""
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and partition == runs[-1][1] + 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    words = [f"{first}-{last}" if first < last else f"{first}" for first, last in runs]
    return ",".join(words[:SPELLED_MAX]) + (",..." if len(words) > SPELLED_MAX else "")


def _tag(key: bytes) -> bytes:
    """Redis Cluster's rule: from the first `{` to the first `}` after it, if there is anything between them."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return key[start:end] if end > start else key


def _described(key: object) -> str:
    """How messages may describe a key: never the key itself, which may be a person's name."""
    kind = type(key).__name__
    if isinstance(key, str):
        return f"a {kind} of length {len(key)} with a lone surrogate"
    return f"a {kind} of length {len(key)}" if isinstance(key, bytearray | memoryview) else f"a {kind}"
