"""Keys of items: valid keys, their recorded form, and the set of seen keys."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any
from uuid import UUID

from msgworker.errors import ConfigError
from msgworker.table import MAX_OBJECT_ID

MAX_KEY = MAX_OBJECT_ID
MAX_ITEM_NAME = 50


class SeenKeys:
    """A set of texts that only says "new" or "not new", in about 16 bytes per text.

    It holds 64-bit hashes with open addressing, so that the keys of a million items fit into
    memory. The probability of a collision is 1 in 30 million for a million texts.
    """

    __slots__ = ("_count", "_slots")

    def __init__(self) -> None:
        self._slots = array("q", bytes(8 * 64))
        self._count = 0

    def add(self, text: str) -> bool:
        """Add a text; False if it was there."""
        return self._put(hash(text) or 1)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, text: str) -> bool:
        number = hash(text) or 1
        return self._slots[self._place(number)] == number

    def absorb(self, other: SeenKeys) -> None:
        """Add all texts of another set."""
        for number in other._slots:
            if number:
                self._put(number)

    def _put(self, number: int) -> bool:
        place = self._place(number)
        if self._slots[place]:
            return False
        self._slots[place] = number
        self._count += 1
        if self._count * 3 > len(self._slots) * 2:
            old = self._slots
            self._slots = array("q", bytes(8 * 2 * len(old)))
            for one in old:
                if one:
                    self._slots[self._place(one)] = one
        return True

    def _place(self, number: int) -> int:
        """The slot of the number, or where it would be."""
        slots = self._slots
        last = len(slots) - 1  # a power of two, less one
        place = number & last
        while (found := slots[place]) and found != number:
            place = (place + 1) & last
        return place


class Keys:
    """The keys of the items of one fan-out, as given by the user and as recorded.

    The name of a fan-out separates its records from those of others of the same message: it is
    put in brackets before the key.
    """

    def __init__(self, key: Callable[[Any], Any] | None, name: str) -> None:
        self._key = key
        self._name = name

    def of(self, item: Any, position: int) -> Any:
        """The key as the user gives it; ConfigError if there is none and the item cannot be it."""
        if self._key is not None:
            return self._key(item)
        if isinstance(item, str | int | UUID):
            return item
        raise ConfigError(
            f"item {position} is a {type(item).__name__}, which cannot be its own key: "
            "give key=, a function from an item to a text or a whole number"
        )

    def text(self, key: Any, position: int) -> str:
        """The key as recorded; raises ConfigError for an invalid key."""
        if isinstance(key, bool) or not isinstance(key, str | int | UUID):
            raise ConfigError(
                f"the key of item {position} must be a text or a whole number, got {key!r:.80}"
            )
        text = key if isinstance(key, str) else str(key)
        if not text:
            raise ConfigError(f"the key of item {position} is empty")
        if "\x00" in text:
            raise ConfigError(f"the key of item {position} holds a NUL character")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise ConfigError(
                    f"the key of item {position} holds half of a surrogate pair"
                ) from None
        if self._name or text[0] == "[":  # else a bare key could look like a named one
            text = f"[{self._name}]{text}"
        if len(text) > MAX_KEY:
            raise ConfigError(
                f"the key of item {position} has {len(text)} characters"
                f"{' with its name' if self._name else ''}, at most {MAX_KEY} are kept; "
                "use a shorter one, such as an id or a digest"
            )
        return text


def checked_name(name: Any) -> str:
    """A name for a fan-out; ConfigError if it cannot be one."""
    if not isinstance(name, str) or len(name) > MAX_ITEM_NAME:
        raise ConfigError(
            f"name must be a text of at most {MAX_ITEM_NAME} characters: {name!r:.80}"
        )
    if any(ord(ch) < 32 or ch in "[]" for ch in name):
        raise ConfigError(f"name may hold neither brackets nor control characters, got {name!r}")
    return name
