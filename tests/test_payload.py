"""Payloads go into the table as strict JSON, and come back as what they were."""

from __future__ import annotations

import enum
import json
import math
import re
import sys
import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from msgworker import PayloadError
from msgworker.instance.running.handler import make_handler
from msgworker.instance.running.outcome import payload_of
from msgworker.message import Message
from msgworker.payload import MAX_DIGITS, decode, decode_exactly, encode, pretty, written

NAIVE = datetime(2026, 1, 31, 8, 30)  # noqa: DTZ001 - it has to come back so


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Word(enum.StrEnum):
    YES = "yes"


class Pair(NamedTuple):
    left: int
    right: str


class Line(BaseModel):
    article: str
    price: Decimal
    until: date | None = None


class Strict(BaseModel, strict=True):
    at: datetime
    price: Decimal
    tags: frozenset[str]
    by_number: dict[int, str] = {}
    own: str = pydantic.Field(default="", alias="Own Name")


@pydantic.dataclasses.dataclass
class Checked:
    number: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Order:
    number: UUID
    amount: Decimal
    on: date
    at: datetime
    opens: time
    lasts: timedelta
    colour: Colour
    level: Level
    tags: frozenset[str]
    pair: Pair
    both: tuple[int, str]
    lines: list[Line]
    prices: dict[str, Decimal]
    next: Order | None = None
    doubled: Decimal = field(init=False, default=Decimal(2))


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
minutes = st.integers(-24 * 60 + 1, 24 * 60 - 1)
zones = st.none() | minutes.map(lambda m: timezone(timedelta(minutes=m)))
numbers = st.integers(-(2**70), 2**70)
lines = st.builds(Line, article=texts, price=decimals, until=st.none() | st.dates())


def orders(inner: st.SearchStrategy[Order | None]) -> st.SearchStrategy[Order]:
    return st.builds(
        Order,
        number=st.uuids(),
        amount=decimals,
        on=st.dates(),
        at=st.datetimes(timezones=zones),
        opens=st.times(),
        lasts=st.timedeltas(),
        colour=st.sampled_from(Colour),
        level=st.sampled_from(Level),
        tags=st.frozensets(texts, max_size=3),
        pair=st.builds(Pair, numbers, texts),
        both=st.tuples(numbers, texts),
        lines=st.lists(lines, max_size=2),
        prices=st.dictionaries(texts, decimals, max_size=2),
        next=inner,
    )


def back(value: Any, kind: Any) -> Any:
    """Sent, and received by a handler of this type."""

    def handle(msg: Any) -> None: ...

    handle.__annotations__["msg"] = Message[kind]
    return payload_of(encode(value), None, make_handler("t", handle))


@pytest.mark.long
@given(orders(st.none() | orders(st.none())))
def test_what_is_sent_comes_back_through_its_type(order: Order) -> None:
    got = back(order, Order)
    assert got == order
    assert str(got.amount) == str(order.amount)  # to the last zero; 1E+2 is not 100
    assert type(got.colour) is Colour
    assert isinstance(got.pair, Pair)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_never_goes_through_a_float(value: Decimal) -> None:
    text = encode({"v": value})
    assert text == json.dumps({"v": str(value)}, separators=(",", ":"))
    assert back([value], list[Decimal])[0].as_tuple() == value.as_tuple()


@given(st.recursive(st.none() | st.booleans() | numbers | st.floats(allow_nan=False,
       allow_infinity=False) | texts, lambda inner: st.lists(inner, max_size=3) |
       st.dictionaries(texts, inner, max_size=3), max_leaves=12))  # fmt: skip
def test_plain_json_is_written_as_ever(value: Any) -> None:
    text = encode(value)
    if value is not None:
        assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert decode(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("12.10"), '"12.10"'),
        (date(2026, 1, 31), '"2026-01-31"'),
        (NAIVE, '"2026-01-31T08:30:00"'),
        (datetime(2026, 1, 31, 8, 30, tzinfo=UTC), '"2026-01-31T08:30:00Z"'),
        (time(8, 30), '"08:30:00"'),
        (timedelta(minutes=90), '"PT1H30M"'),
        (UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (Colour.RED, '"red"'),
        (Level.HIGH, "9"),
        ((1, "a"), '[1,"a"]'),
        (Pair(1, "a"), '[1,"a"]'),
        ({"b", "a"}, '["a","b"]'),
        ({Colour.BLUE, Colour.RED}, '["blue","red"]'),
        (frozenset([(2, 1), (1, 2)]), "[[1,2],[2,1]]"),
        ({Word.YES: Word.YES}, '{"yes":"yes"}'),
        (OrderedDict(b=1, a=date(2026, 1, 1)), '{"b":1,"a":"2026-01-01"}'),
        (defaultdict(int, a=1), '{"a":1}'),
        (Checked(1, Decimal("2.0")), '{"number":1,"price":"2.0"}'),
        ([Line(article="x", price=Decimal(1))], '[{"article":"x","price":"1","until":null}]'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_values_are_written(value: Any, text: str) -> None:
    assert encode(value) == text
    if type(value) not in (OrderedDict, defaultdict, list, dict, set, frozenset, tuple):
        assert back(value, type(value)) == value


def test_a_strict_model_reads_json_as_json() -> None:
    """In Python a strict model takes no text for a date; in JSON there is nothing else."""
    model = Strict(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        price=Decimal("1.10"),
        tags=frozenset({"a"}),
        by_number={7: "seven"},
        **{"Own Name": "x"},
    )
    assert back(model, Strict) == model
    raw = encode(model)
    assert raw is not None
    for form in (raw.encode(), memoryview(raw.encode()), json.loads(raw)):  # other column types
        assert payload_of(form, None, _handler(Strict)) == model


def _handler(kind: Any) -> Any:
    def handle(msg: Any) -> None: ...

    handle.__annotations__["msg"] = Message[kind]
    return make_handler("t", handle)


def test_a_handler_without_a_type_gets_json() -> None:
    def handle(msg: Message) -> None: ...

    sent = {"at": NAIVE, "price": Decimal("1.10"), "tags": {"a"}}
    got = payload_of(encode(sent), None, make_handler("t", handle))
    assert got == {"at": "2026-01-31T08:30:00", "price": "1.10", "tags": ["a"]}


def test_a_type_that_may_be_nothing_takes_nothing() -> None:
    assert payload_of(None, None, _handler(Decimal | None)) is None
    with pytest.raises(PayloadError, match="does not fit"):
        payload_of(None, None, _handler(Decimal))


@dataclass
class Holder:
    rows: Any


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: 2}, "payload has the key 1 of type int; the keys of JSON are texts"),
        ({"a": [0, {None: 1}]}, "payload.a[1] has the key None of type NoneType"),
        ({"a": {True: 1}}, "payload.a has the key True of type bool"),
        (Holder({date(2026, 1, 1): 1}), "payload.rows has the key datetime.date(2026, 1, 1)"),
        ({Colour.RED: 1, "red": 2}, "payload has the key 'red' twice"),
        ([{Level.LOW: 1}], "payload[0] has the key <Level.LOW: 1>"),
        ({"a": [1.0, math.nan]}, "payload.a[1] is nan, which JSON does not have"),
        (Holder(-math.inf), "payload.rows is -inf"),
        (Decimal("NaN"), "payload is NaN"),
        ({"a": Decimal("sNaN")}, "payload.a is sNaN"),
        (Holder(b"x"), "payload.rows is of type bytes, which is not written as JSON; decode it"),
        ([Holder(object())], "payload[0].rows is of type object"),
        ({"a": {1, object()}}, "payload.a[...] is of type object"),
        ((n for n in (1, 2)), "payload is of type generator"),
        (Holder, "payload is a class"),
        ({"a": 1 + 2j}, "payload.a is of type complex"),
        (
            datetime(1890, 1, 1, tzinfo=timezone(timedelta(seconds=29143))),
            "payload has a UTC offset with seconds",
        ),
        (Holder("nul \x00"), "holds a NUL"),
        (Holder("half \ud800"), "surrogate"),
        ({"half \ud800": 1}, "surrogate"),
        ({"x" * 10_000: object()}, "payload."),
    ],
    ids=range(21),
)
def test_what_is_no_payload_is_refused_with_its_place(value: Any, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_holds_itself_is_refused() -> None:
    circle, holder, mixed = [], Holder(None), {"a": date(2026, 1, 1)}  # type: ignore[var-annotated]
    circle.append(circle)
    holder.rows = holder
    mixed["b"] = mixed  # type: ignore[assignment]
    for value in (circle, holder, mixed):
        with pytest.raises(PayloadError, match="nested too deeply, or holds itself"):
            encode(value)


def test_a_model_that_cannot_be_written_is_refused() -> None:
    class Odd(BaseModel, arbitrary_types_allowed=True):
        thing: object

    for thing in (object(), b"\xff"):
        with pytest.raises(PayloadError, match="payload cannot be written as JSON"):
            encode(Odd(thing=thing))


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "guides" / "payloads.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {"__name__": "crm"}
    monkeypatch.setitem(sys.modules, "crm", types.SimpleNamespace(**made))  # type: ignore[arg-type]
    exec(compile(example, "crm.py", "exec", dont_inherit=True), made)
    (stored,) = re.findall(r"# in the table: (.+)", example)
    (sent,) = made["app"].ops.find()
    assert made["app"].ops.show(sent.msg_id).payload == stored
    assert made["app"].drain(linger=0).done == 1
    assert capsys.readouterr().out == "13.10\n"


def test_the_first_five_faults_of_a_payload_are_named_with_their_places():
    class Post(BaseModel):
        price: Decimal

    sent = [{"price": "1.5"}, *({"price": f"much {n}"} for n in range(6)), {}]
    with pytest.raises(PayloadError) as caught:
        payload_of(json.dumps(sent), None, _handler(list[Post]))
    text = str(caught.value)
    for n in range(1, 6):
        assert f"{n}.price: Input should be a valid decimal" in text
    assert "6.price" not in text
    assert text.endswith("; and 2 more")
    assert "much" not in text  # the value may be confidential


TEXTS = [
    "{}", "[]", '""', "0", "-0", "1e5", "1E400", "-1e999", "1.5", "NaN", "Infinity", "-Infinity",
    "null", "true", "nul", "[1,", "[1 2]", '{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', '{"a" 1}', "1 2",
    " 1", "1 ", "\n{}\n", "\ufeff1", '"\\ud800"', '"\\uD83D\\uDE00"', '"\\u00e9"', '"\t"', '"\\x"',
    "'a'", "1.", "01", "-", "{" * 3, "9" * 4000, "[" * 2000, "[" * 2000 + "]" * 2000, "\x00",
    '"\x00"',
]  # fmt: skip


def outcome(text: str) -> Any:
    try:
        return repr(decode(text))
    except PayloadError as error:
        return str(error)


def alike(text: str) -> None:
    """A text is the same payload, or the same fault, as a long one: space after it is nothing."""
    long = text + " " * (MAX_DIGITS + 1)
    unlike = ("Extra data", "Unterminated", "Expecting")  # these tell where, which may be the end
    if outcome(text).startswith("the payload is not JSON") and any(
        word in outcome(text) for word in unlike
    ):
        assert outcome(long).startswith("the payload is not JSON")
    else:
        assert outcome(text) == outcome(long)


@pytest.mark.parametrize("text", TEXTS)
def test_a_short_payload_is_judged_like_a_long_one(text: str) -> None:
    alike(text)


@given(st.text(alphabet='{}[]",:0123456789.eE+- tfnualsr\\"dD\n', max_size=30))
def test_any_short_text_is_judged_like_a_long_one(text: str) -> None:
    if text:  # an empty text is None, spaces are no JSON
        alike(text)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_short_payload_comes_back_as_by_the_standard_library(value: Any) -> None:
    text = json.dumps(value)
    assert repr(decode(text)) == repr(json.loads(text))


# ---------------------------------------------------------------- digit for digit

EXACT = '{"amount":12345678901234567.89,"zero":1.50,"big":1E5,"no":-0,"list":[0.1,{}],"x":"ü"}'


def test_numbers_are_written_with_the_digits_that_they_had() -> None:
    value = decode_exactly(EXACT)
    assert value == json.loads(EXACT)
    assert (encode(value), written(value)) == (EXACT, EXACT)
    assert json.loads(written(value, indent=True)) == json.loads(EXACT)
    assert '\n  "amount": 12345678901234567.89,\n' in pretty(EXACT)
    assert encode(decode_exactly("[1.10]")) == "[1.10]"
    assert decode_exactly("") is None


@pytest.mark.parametrize("value", [{}, [], {"a": []}, [[], {}], "a", 1, None, True, [{"a": 1}, 2]])
def test_what_is_written_is_what_json_writes(value: Any) -> None:
    assert written(value) == json.dumps(value, separators=(",", ":"))
    assert written(value, indent=True) == json.dumps(value, indent=2)


@pytest.mark.parametrize("text", ["", "no json", '{"a": NaN}', '{"a": 1, "a": 2}', "1e999"])
def test_what_is_no_json_is_shown_as_it_is(text: str) -> None:
    assert pretty(text) == text


def test_the_numbers_of_a_payload_that_cannot_be_kept_are_refused_digit_for_digit() -> None:
    with pytest.raises(PayloadError, match="out of range"):
        decode_exactly('{"a": 1e999}')
    with pytest.raises(PayloadError, match="NUL"):
        encode(decode_exactly('{"a": 1.10, "b": "\\u0000"}'))
