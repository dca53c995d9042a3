"""Built-in data: orders in short texts, to be extracted as JSON.

Held-out texts share no customer name (neither first nor last), city, item or phrasing with training texts.
Every prompt has the same two worked examples, from the training side, so that engines can compute the long
common start once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from assay.types import Message, Row

OPTIONS: Mapping[str, tuple[str, ...] | range] = {
    "split": ("train", "heldout"),
    "level": ("flat", "lines"),
    "rows": range(1, 100_001),
    "seed": range(2**32),
}
DEFAULT_ROWS = {"train": 2000, "heldout": 200}


@dataclass(frozen=True, slots=True)
class Side:
    """The words and phrasings of one split. The plural of every item is a plain -s."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    cities: tuple[str, ...]
    items: tuple[str, ...]
    phrasings: tuple[str, ...]
    line_phrasings: tuple[tuple[str, str], ...]
    """For ``level=lines``: the text, and how one of its lines reads."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _names(text: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in text.split(","))


TRAIN = Side(
    first_names=_words(
        """
        Maria John Peter Anna David Henry Paul Michael James William Richard Joseph Mark Edward Stephen Frank
        Mary Sarah Emily Arthur Leon Thomas Anne Max Bill Bob Carl Chris Christian Donald Fred Jean Jim Ken Lily
        Luke Neil Nick Phil Ray Rose Tim Earl Jeff Josh June Lewis Maya Ross
        """
    ),
    last_names=_words(
        """
        Lopez Smith Khan Chen Weber Silva Jensen Kim Berg Patel Morgan Santos Walker Fischer Schneider Johnson
        Williams Davis Anderson Moore Thompson Lewis Nelson Carter Turner Edwards Peterson Richardson Jones
        Allen Rivera Phillips Morris Rogers Cooper Howard Watson Brooks Kelly Sanders Henderson Coleman Jenkins
        Perry Powell Patterson Hughes Butler Bryant Russell Griffin Armstrong Barnes Barrett Bishop Boyd Bradley
        Burke Burns Cameron Chapman Cole Crawford Cruz Dawson Dixon Duncan Ellis Fisher Fletcher Ford Freeman
        Gibson Graves Greene Hamilton Hart Hayes Hoffman Holmes Hudson Hunt Hunter Kennedy Knight Lambert Lynch
        Marshall Mason McCarthy Montgomery Murray Myers Newman Newton Palmer Payne Perkins Pierce Porter Reed
        Reynolds Rodriguez Ross Schmidt Shaw Simpson Sullivan Wagner Wallace Warren Webb Wheeler
        """
    ),
    cities=_names(
        """
        Paris, Rome, Boston, Chicago, Washington, Lincoln, Darwin, Oxford, Harvard, Bern, New York, New Haven,
        San Diego, San Antonio, Los Angeles, Fort Worth, Fort Wayne, Port Said, Port Arthur, El Paso,
        Salt Lake City, Mexico City, Grand Rapids, Little Rock, Long Beach, Green Bay, North Bay, South Bend,
        Red Deer, Round Rock, High Point, Park City, Park Ridge, Mount Vernon, Silver City, Golden Valley,
        Big Bear, Three Rivers, Royal Oak, Lake Forest, Lake City, Bay City, Union City, Half Moon Bay,
        Ocean City, Pacific Grove, Gold Coast, Rose Hill, Spring Hill, Sugar Land, Clear Lake, Good Hope
        """
    ),
    items=_words(
        """
        printer camera chair wallet computer engine filter flower horse motor screen shirt stone uniform wheel
        window container folder handle machine robot tile tool tube pipe photo picture plant letter frame chain
        block coin cube tank shield vehicle arrow belt boat bolt cart chart cookie counter cover disk fan flag
        gate gear hook hose jar light mask meter nail pin pot roller router seat sheet stamp wire menu apple
        bird board clip console controller detector device egg film game graph guide map marker model module nut
        package packet planet player plug pole processor rack record rod server shell signal socket star stick
        strap target terminal thread token tower track train tree video wing
        """
    ),
    phrasings=(
        "{customer} from {city} ordered {quantity} {item}s at {price} euros each.",
        "Order note: {quantity} x {item}, unit price {price} EUR, customer {customer}, ship to {city}.",
        "Please send {quantity} {item}s to {customer} in {city}. Each one costs {price} euros.",
        "New order from {customer}, {city}: {quantity} {item}s, {price} euros per piece.",
        "For {price} euros each, {customer} of {city} buys {quantity} {item}s.",
        "Item: {item}. Quantity: {quantity}. Price per unit: {price}. Customer: {customer}. City: {city}.",
        "We sold {quantity} {item}s to {customer}, who lives in {city}, for {price} euros a piece.",
        "Deliver to {city}: {quantity} {item}s for {customer}, {price} EUR each.",
        "Hello, this is {customer} from {city}. I would like {quantity} {item}s at a price of {price} euros each.",
        "{quantity} {item}s have to go to {city}; {customer} pays {price} euros for each.",
        "{city}. {customer}. {quantity} {item}s. {price} EUR each.",
        "Our customer {customer} took {quantity} {item}s for {price} euros each; we ship them to {city}.",
        "Product {item}, {quantity} units, {price} EUR a unit, sold to {customer} from {city}.",
        "To {customer} in {city} we delivered {quantity} {item}s, and each cost {price} euros.",
        "There is an order of {quantity} {item}s from {city}; the name is {customer}, the price {price} euros each.",
        "At {price} euros each, {quantity} {item}s leave for {city} today, addressed to {customer}.",
        "{customer} of {city} has bought {quantity} {item}s, each at {price} euros.",
        "{customer}, living in {city}, orders {quantity} {item}s; one costs {price} euros.",
        "Receipt for {customer}: {quantity} units of {item}, {price} EUR a unit, delivered to {city}.",
        "Delivery note: {quantity} copies of {item}, each {price} EUR, recipient {customer}, place {city}.",
        "Can you bring {quantity} {item}s to {city}? {customer} will pay {price} euros for each.",
        "Would you deliver {quantity} {item}s to {customer}? The address is in {city}, the unit price {price} euros.",
        "Stock out: {item}, amount {quantity}, price {price}, client {customer}, {city}.",
        "Order of {item}, number {quantity}, price {price} each. Client {customer}, town {city}.",
        "From {city}, {customer} has asked for {quantity} {item}s at {price} euros a unit.",
        "The bill of {customer} lists {quantity} {item}s at {price} EUR each, sent to {city}.",
        "{quantity} {item}s, sold at {price} euros each, were sent to {customer} in {city}.",
        "{quantity} {item}s at {price} euros each go to {customer}, {city}.",
        "In {city} lives {customer}, whose order is {quantity} {item}s for {price} euros each.",
        "Client: {customer} ({city}). Goods: {quantity} {item}s. Price each: {price} euros.",
        "{customer} ({city}) needs {quantity} {item}s. We ask {price} euros for every one.",
        "Shipment to {city}, {quantity} units of {item}, unit price {price}, for {customer}.",
        "A call from {customer} in {city}: {quantity} {item}s, please, at the price of {price} euros each.",
        "We have {quantity} {item}s for {customer}. Price: {price} euros each. Send them to {city}.",
        "{item}s for {city}: {quantity}, at {price} euros each, ordered by {customer}.",
        "Ordered by {customer} from {city}: {item}, {quantity} of them, {price} EUR each.",
        "My name is {customer}, I live in {city} and I need {quantity} {item}s, {price} euros each.",
        "Sold: {quantity} {item}s. Unit price: {price} euros. To: {customer}, {city}.",
        "{customer} will collect {quantity} {item}s in {city} and pay {price} euros a piece.",
        "The price is {price} euros for each of the {quantity} {item}s that {customer} from {city} ordered.",
    ),
    line_phrasings=(
        ("{customer} from {city} ordered {lines}.", "{quantity} {item}s at {price} euros each"),
        ("Order note, customer {customer}, ship to {city}: {lines}.", "{quantity} x {item}, unit price {price} EUR"),
        ("Please send this to {customer} in {city}: {lines}.", "{quantity} {item}s for {price} euros a piece"),
        ("New order, {city}, {customer}: {lines}.", "{price} euros per piece for {quantity} {item}s"),
    ),
)

HELDOUT = Side(
    first_names=_words(
        """
        Robert Samuel Victor Daniel Simon Alice George Charles Andrew Jacob Scott Alexander Adam Elizabeth
        Martin Louis Matthew Marie Jane Virginia
        """
    ),
    last_names=_words(
        """
        Garcia Brown Ahmed Murphy Zhang Costa Keller Singh Bennett Torres Clarke Meyer Ibrahim Foster Miller
        Wilson Taylor Harris Robinson Wright Adams Baker Campbell Mitchell Evans Parker Collins Stewart Roberts
        """
    ),
    cities=_names(
        """
        London, Cambridge, Madison, Jackson, Tel Aviv, Great Falls, Ann Arbor, Hot Springs, Key West,
        Prince Albert, Bel Air, Medicine Hat, Battle Creek, White Plains, College Station, Sun Prairie,
        Saint Louis
        """
    ),
    items=_words(
        """
        table clock monitor radio phone bucket plate calendar document button panel sensor bell boot coat door
        generator journal oven receiver
        """
    ),
    phrasings=(
        "{customer}, who is based in {city}, wants {quantity} {item}s at {price} euros apiece.",
        "Purchase by {customer}: {quantity} pieces of {item}, {price} EUR for one, destination {city}.",
        "Could you ship {quantity} {item}s to {city}? The buyer is {customer} and the price is {price} euros apiece.",
        "Sale of {item}, count {quantity}, single price {price}. Buyer {customer}, {city}.",
        "In {city}, {customer} has requested {quantity} {item}s costing {price} euros apiece.",
        "The invoice for {customer} shows {quantity} {item}s at {price} EUR per item, going to {city}.",
        "{quantity} {item}s, priced at {price} euros apiece, are on their way to {customer} in {city}.",
    ),
    line_phrasings=(
        ("{customer}, who is based in {city}, wants {lines}.", "{quantity} {item}s at {price} euros apiece"),
        ("Purchase by {customer}, destination {city}: {lines}.", "{quantity} pieces of {item}, {price} EUR for one"),
        ("In {city}, {customer} has requested {lines}.", "{quantity} {item}s costing {price} euros apiece"),
    ),
)

SIDES = {"train": TRAIN, "heldout": HELDOUT}

_SYSTEM = {
    "flat": "Extract the order as JSON with the keys customer, city, item, quantity and price.",
    "lines": "Extract the order as JSON with the keys customer, city, lines (a list of objects with the keys item, "
    "quantity and price) and total (the sum of quantity times price).",
}


def orders(*, split: str, level: str = "flat", rows: int | None = None, seed: int = 0) -> list[Row]:
    """Rows of distinct texts; the first n rows are the same however many are asked for.

    ``level=flat`` has one item an order, ``level=lines`` two or three and a computed total. The answer is the
    object to extract; the column ``schema`` is its JSON Schema.
    """
    count = DEFAULT_ROWS[split] if rows is None else rows
    examples = list(_examples(level))
    start = _start(level, examples)
    seen = {text for text, _ in examples}
    # Seeded by text: Python hashes it the same way on every machine and version.
    draw, rng = _LEVELS[level], random.Random(f"orders/{level}/{split}/{seed}")
    result: list[Row] = []
    while len(result) < count:
        text, answer = draw(SIDES[split], rng)
        if text not in seen:
            seen.add(text)
            prompt = (*start, {"role": "user", "content": text})
            result.append(Row(f"orders/{split}/{len(result)}", prompt, answer, {"schema": schema(level)}))
    return result


def schema(level: str) -> dict[str, Any]:
    """The JSON Schema of a level's answers."""
    text, number = {"type": "string"}, {"type": "integer", "minimum": 1}
    line = {"item": text, "quantity": number, "price": number}
    if level == "flat":
        return _closed({"customer": text, "city": text, **line})
    lines = {"type": "array", "items": _closed(line), "minItems": 1}
    return _closed({"customer": text, "city": text, "lines": lines, "total": number})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _flat(side: Side, rng: random.Random) -> tuple[str, dict[str, Any]]:
    phrasing = rng.choice(side.phrasings)
    answer = {**_buyer(side, rng), **_line(rng.choice(side.items), rng)}
    return _flat_text(phrasing, answer), answer


def _lines(side: Side, rng: random.Random) -> tuple[str, dict[str, Any]]:
    phrasing = rng.choice(side.line_phrasings)
    items = rng.sample(side.items, rng.randint(2, 3))
    answer = _with_total({**_buyer(side, rng), "lines": [_line(item, rng) for item in items]})
    return _lines_text(phrasing, answer), answer


_LEVELS: dict[str, Callable[[Side, random.Random], tuple[str, dict[str, Any]]]] = {"flat": _flat, "lines": _lines}


def _buyer(side: Side, rng: random.Random) -> dict[str, Any]:
    return {
        "customer": f"{rng.choice(side.first_names)} {rng.choice(side.last_names)}",
        "city": rng.choice(side.cities),
    }


def _line(item: str, rng: random.Random) -> dict[str, Any]:
    # From 2 upwards: the plural in the text is always right.
    return {"item": item, "quantity": rng.randint(2, 19), "price": rng.randint(3, 250)}


def _with_total(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "total": sum(line["quantity"] * line["price"] for line in answer["lines"])}


def _flat_text(phrasing: str, answer: Mapping[str, Any]) -> str:
    return phrasing.format(**answer)


def _lines_text(phrasing: tuple[str, str], answer: Mapping[str, Any]) -> str:
    text, line_text = phrasing
    lines = "; ".join(line_text.format(**line) for line in answer["lines"])
    return text.format(customer=answer["customer"], city=answer["city"], lines=lines)


def _examples(level: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The two worked examples: text and answer."""
    printer = {"item": "printer", "quantity": 12, "price": 45}
    camera = {"item": "camera", "quantity": 7, "price": 130}
    maria = {"customer": "Maria Lopez", "city": "Paris"}
    peter = {"customer": "Peter Weber", "city": "Green Bay"}
    for buyer, lines, i in ((maria, [printer, camera], 0), (peter, [camera, printer], 1)):
        if level == "flat":
            answer: dict[str, Any] = {**buyer, **lines[0]}
            yield _flat_text(TRAIN.phrasings[i], answer), answer
        else:
            answer = _with_total({**buyer, "lines": lines})
            yield _lines_text(TRAIN.line_phrasings[i], answer), answer


def _start(level: str, examples: list[tuple[str, dict[str, Any]]]) -> tuple[Message, ...]:
    messages: list[Message] = [{"role": "system", "content": f"{_SYSTEM[level]} Reply with JSON only."}]
    for text, answer in examples:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": json.dumps(answer, separators=(",", ":"))})
    return tuple(messages)
