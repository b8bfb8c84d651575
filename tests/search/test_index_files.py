"""Hostile index files whose checksums are right, and the sizes of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import MIWQ, Index, NamedIndex, Scan
from stillhash.errors import BadState
from stillhash.files import read_sealed, write_sealed
from stillhash.search.index_files import INDEX_FORMAT, INDEX_HEADER, INDEX_MAGIC
from tests.contracts.searchers import random_codes

SECTION = 4096
GOLDEN = Path(__file__).parent / "golden"
FIELDS = ["magic", "version", "bits", "tables", "named", "next_id", "blocks", "texts", "data"]


@pytest.fixture
def content(tmp_path: Path) -> bytearray:
    """The content of a file: header, blocks, tiles, ids, and a bitmap of live rows, in a section each."""
    index = Scan(12)
    index.add(random_codes(np.random.default_rng(0), 200, 12), np.arange(200)[::-1])
    index.remove([3])
    index.save(tmp_path / "sound")
    return bytearray(read_sealed(tmp_path / "sound"))


def refused(tmp_path: Path, content: bytearray, *, verify: bool = True) -> str:
    write_sealed(tmp_path / "hostile", [bytes(content)])
    with pytest.raises(BadState) as error:
        Index.load(tmp_path / "hostile", verify=verify)
    return str(error.value)


def test_the_layout_is_as_documented(content: bytearray) -> None:
    header = dict(zip(FIELDS, INDEX_HEADER.unpack(content[: INDEX_HEADER.size]), strict=True))
    assert header["magic"] == INDEX_MAGIC and header["version"] == INDEX_FORMAT == 1
    assert (header["bits"], header["next_id"], header["blocks"], len(content)) == (12, 200, 1, 5 * SECTION)
    assert np.frombuffer(content[SECTION : SECTION + 32], "<i8").tolist() == [200, 199, 1, 1]
    assert np.frombuffer(content[3 * SECTION : 3 * SECTION + 16], "<i8").tolist() == [199, 198]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("magic", b"stillhash segmen"), ("version", 0), ("version", 2), ("bits", 0), ("bits", 13), ("bits", 4000)],
        *[("bits", 400), ("tables", 2**32 - 1), ("named", 1), ("named", 9), ("next_id", -1), ("next_id", 2**63 - 1)],
        *[("next_id", 199), ("blocks", 0), ("blocks", 2), ("blocks", 2**64 - 1), ("blocks", 2**59)],
    ],
)
def test_hostile_headers_are_refused(content: bytearray, tmp_path: Path, field: str, value: Any) -> None:
    header = dict(zip(FIELDS, INDEX_HEADER.unpack(content[: INDEX_HEADER.size]), strict=True))
    content[: INDEX_HEADER.size] = INDEX_HEADER.pack(*{**header, field: value}.values())
    if (field == "bits" and value == 13) or (field == "next_id" and value > 200):  # a file that an index may have
        write_sealed(tmp_path / "odd", [bytes(content)])
        assert len(Index.load(tmp_path / "odd")) == 199
        return
    refused(tmp_path, content)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[(0, 0), (0, -1), (0, 3000), (0, 2**62), (0, 2**63 - 1)],  # rows
        *[(1, -1), (1, 2**63 - 1)],  # first id
        *[(2, 0), (2, 2), (3, 0), (3, -1), (3, 201)],  # ids and removed rows
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_hostile_blocks_are_refused(content: bytearray, tmp_path: Path, place: int, value: int, verify: bool) -> None:
    content[SECTION + 8 * place : SECTION + 8 * place + 8] = value.to_bytes(8, "little", signed=True)
    refused(tmp_path, content, verify=verify)


def test_hostile_ids_and_codes_are_refused(content: bytearray, tmp_path: Path) -> None:
    for number in (-5, 200, 2**63 - 1):
        hostile = content.copy()
        hostile[3 * SECTION : 3 * SECTION + 8] = number.to_bytes(8, "little", signed=True)
        assert "ids" in refused(tmp_path, hostile)
    hostile = content.copy()
    hostile[4 * SECTION] ^= 1
    assert "removed" in refused(tmp_path, hostile)
    content[2 * SECTION + 256 + 7] |= 0x80
    assert "bit 11" in refused(tmp_path, content)


def test_files_of_the_other_kind_of_ids_are_refused(tmp_path: Path) -> None:
    Scan(16).save(tmp_path / "numbers")
    NamedIndex(16).save(tmp_path / "texts")
    with pytest.raises(BadState, match=r"Index\.load"):
        NamedIndex.load(tmp_path / "numbers")
    with pytest.raises(BadState, match=r"NamedIndex\.load"):
        Index.load(tmp_path / "texts")


def test_files_of_every_format_version_answer_as_they_did(tmp_path: Path) -> None:
    numbers = MIWQ.load(GOLDEN / "integer_ids_1.index")
    assert (len(numbers), numbers.bits, numbers.tables) == (38, 13, 3)
    scores, ids = numbers.search(np.arange(13) - 5.5, 5)
    assert ids[0].tolist() == [18, 21, 22, 17, 19] and scores[0].tolist() == [27.5, 25.5, 21.5, 19.5, 19.5]
    texts = NamedIndex.load(GOLDEN / "text_ids_1.index")
    scores, names = texts.search(np.arange(16) - 7.5, 6)
    assert names[0].tolist() == ["🙂", "é", "漢字", "a", "f", None] and scores[0, :5].tolist() == [19, 3, -6, -15, -18]
    for index, name in ((numbers, "integer_ids_1.index"), (texts, "text_ids_1.index")):
        index.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("bits", [64, 100])
def test_a_file_is_little_larger_than_the_codes(bits: int, tmp_path: Path) -> None:
    index, codes = Index(bits), random_codes(np.random.default_rng(0), 100_000, bits)
    for part in np.array_split(codes, 7):
        index.add(part)
    index.save(tmp_path / "a")
    assert (tmp_path / "a").stat().st_size < 1.01 * codes.nbytes + 10 * SECTION
    loaded = Index.load(tmp_path / "a")
    assert loaded.codes(np.arange(100_000)).tobytes() == codes.tobytes()
    assert loaded.nbytes <= codes.nbytes * 1.01
