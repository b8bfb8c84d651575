"""Mutations of valid input: bytes anywhere, numbers at their extremes, and JSON by its structure.

Everything follows from the generator of random numbers, so a seed repeats a run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

EXTREME_INTEGERS = [0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
EXTREME_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400),
    *(0.0, -0.0, 0.5, 5e-324, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
    *("", "a", "\0", "\ud800", "ö😀", "x" * 2000, "1", "[1]", "$in", "labels", "null"),
    *([], {}, [[]], [{}], {"": None}, [None], [1, "a"]),
]
WORDS = [b"\0", b"\xff", b"null", b"NaN", b"1e999", b"-1", b'"', b"\\", b"\n", b"\r\n", b"[", b"{", b"]", b"}", b","]
DEEP = 3000  # levels of nesting: more than Python takes
Rng = random.Random
Mutation = Callable[[Rng, bytearray, list[bytes]], bytearray]


def flip_bits(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def truncate(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    return data[: rng.randrange(len(data))]


def remove(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice([1, 2, 4, 8, 64, 4096])]
    return data


def duplicate(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    at, to = rng.randrange(len(data)), rng.randrange(len(data) + 1)
    data[to:to] = data[at : at + rng.choice([1, 8, 64, 512, 4096])]
    return data


def splice(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    """Write a piece of another input over this one, or insert it."""
    other = rng.choice(pool)
    start, size = rng.randrange(len(other) + 1), rng.choice([4, 16, 128, 1024, 4096])
    piece, at = other[start : start + size], rng.randrange(len(data) + 1)
    data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece
    return data


def extreme_number(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    """Write an extreme integer of 1, 2, 4 or 8 bytes; more often near the beginning, where sizes and counts are."""
    size = rng.choice([1, 2, 4, 8])
    near = len(data) if rng.random() < 0.5 else min(len(data), 128)
    at = rng.randrange(near) // size * size
    value = rng.choice(EXTREME_INTEGERS) % 256**size
    data[at : at + size] = value.to_bytes(size, rng.choice(["little", "big"]))  # type: ignore[arg-type]
    return data


def insert_word(rng: Rng, data: bytearray, pool: list[bytes]) -> bytearray:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(WORDS) * rng.choice([1, 1, 1, 3, DEEP])
    return data


BYTE_MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, flip_bits, truncate, remove, duplicate, splice),
    *(extreme_number, extreme_number, extreme_number, insert_word),
)


def mutate_bytes(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    """Apply one to four mutations."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        changed = rng.choice(BYTE_MUTATIONS)(rng, changed or bytearray(b"\0"), pool)
    return bytes(changed)


def mutate_value(rng: Rng, value: Any, words: list[str], depth: int = 0) -> Any:
    """Change one place of a JSON value; `words` are keys and texts that mean something to the reader."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        return _mutate_list(rng, value, words, depth)
    if isinstance(value, dict) and value and rng.random() < 0.8:
        return _mutate_object(rng, value, words, depth)
    kind = rng.random()
    if kind < 0.15 and words:
        return rng.choice(words)
    if kind < 0.3 and words:
        return {rng.choice(words): value}
    if kind < 0.35:
        return [value] * rng.choice([1, 2, 50])
    if kind < 0.37:
        return nested(rng.choice([9, 40, DEEP]), rng.choice(["[]", '{"$not":}']))
    return rng.choice(EXTREME_VALUES)


def _mutate_list(rng: Rng, value: list[Any], words: list[str], depth: int) -> list[Any]:
    at = rng.randrange(len(value))
    match rng.randrange(6):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return value[:at] + [value[at]] * rng.choice([2, 3, 600]) + value[at + 1 :]
        case _:
            return [*value[:at], mutate_value(rng, value[at], words, depth + 1), *value[at + 1 :]]


def _mutate_object(rng: Rng, value: dict[str, Any], words: list[str], depth: int) -> dict[str, Any]:
    key = rng.choice(list(value))
    match rng.randrange(6):
        case 0:
            return {name: one for name, one in value.items() if name != key}
        case 1:
            other = rng.choice([*words, "", "\0", "a.b", "\ud800", "x" * 2000])
            return {other if name == key else name: one for name, one in value.items()}
        case 2:
            return {**value, rng.choice([*words, "more"]): rng.choice(EXTREME_VALUES)}
        case _:
            return {**value, key: mutate_value(rng, value[key], words, depth + 1)}


class Literal(str):
    """JSON text that is written as it is: too deep for the encoder."""


def nested(levels: int, brackets: str) -> Literal:
    half = len(brackets) // 2 if brackets == "[]" else len(brackets) - 1
    return Literal(brackets[:half] * levels + ("1" if half > 1 else "") + brackets[half:] * levels)


def to_json(value: Any) -> bytes:
    """Serialise, extreme values and deep nesting included."""
    literals: list[str] = []

    def plain(one: Any) -> Any:
        if isinstance(one, Literal):
            literals.append(one)
            return f"literal {len(literals) - 1} of this"
        if isinstance(one, list):
            return list(map(plain, one))
        return {key: plain(each) for key, each in one.items()} if isinstance(one, dict) else one

    text = json.dumps(plain(value))
    for number, literal in enumerate(literals):
        text = text.replace(f'"literal {number} of this"', literal)
    return text.encode()


def mutate_json(rng: Rng, data: bytes, pool: list[bytes], words: list[str]) -> bytes:
    """Change a JSON text by its structure, or where that is impossible, and sometimes otherwise, by its bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data, pool)
    if rng.random() < 0.15:
        return mutate_bytes(rng, data, pool)
    for _ in range(rng.choice([1, 1, 2, 4])):
        value = mutate_value(rng, value, words)
    try:
        return to_json(value)
    except (RecursionError, MemoryError):  # too deep to write
        return mutate_bytes(rng, data, pool)


def mutate_json_lines(rng: Rng, data: bytes, pool: list[bytes], words: list[str]) -> bytes:
    """Change one line of JSON lines, or the bytes."""
    lines = data.split(b"\n")
    if rng.random() < 0.2:
        return mutate_bytes(rng, data, pool)
    at = rng.randrange(len(lines))
    lines[at] = mutate_json(rng, lines[at] or b"{}", pool, words)
    return b"\n".join(lines)
