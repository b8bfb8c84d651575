"""ZIP archives of strangers: bombs are refused before anything is unpacked, and no name leaves the folder."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput, TooLarge
from stillhash.server.archives import ArchiveLimits, check_zip, inner_path, unpack_zip

SUFFIXES = (".jpg", ".png")
PARTS = st.one_of(
    st.sampled_from(["..", ".", "", "a", "b.jpg", "C:", "CON", "~", "\0", "é", " x ", ".hidden"]), st.text()
)
NAMES = st.lists(PARTS, min_size=1, max_size=10).flatmap(
    lambda parts: st.sampled_from(["/", "\\"]).map(lambda s: s.join(parts))
)


def write_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def files_below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_files_of_the_wanted_kinds_are_unpacked(tmp_path: Path) -> None:
    names = ["a/cat.jpg", "dogs/1.PNG", "dogs/deep/2.jpg", "notes.exe", "__MACOSX/._cat.jpg", "empty/"]
    shares: list[float] = []
    archive = write_zip(tmp_path / "a.zip", {name: name.encode() for name in names})
    (tmp_path / "out").mkdir()
    done = unpack_zip(archive, tmp_path / "out", SUFFIXES, progress=shares.append)
    assert done.files == ["cat.jpg", "dogs/1.PNG", "dogs/deep/2.jpg"] == files_below(tmp_path / "out")
    assert (tmp_path / "out" / "dogs" / "1.PNG").read_bytes() == b"dogs/1.PNG"
    assert set(done.skipped) == {"notes.exe", "__MACOSX/._cat.jpg"}
    assert shares == sorted(shares) and shares[-1] == 1


def test_names_that_leave_the_folder_lose_their_path(tmp_path: Path) -> None:
    hostile = ["../../up.jpg", "/abs.jpg", "C:\\win.jpg", "a/../../b.jpg", "..\\back.jpg", "x" * 200 + ".jpg"]
    archive = write_zip(tmp_path / "a.zip", dict.fromkeys(hostile, b"1"))
    folder = tmp_path / "deep" / "out"
    folder.mkdir(parents=True)
    done = unpack_zip(archive, folder, SUFFIXES)
    assert sorted(done.files) == ["abs.jpg", "b.jpg", "back.jpg", "up.jpg", "win.jpg"] == files_below(folder)
    assert len(done.skipped) == 1
    assert files_below(tmp_path) == ["a.zip", *(f"deep/out/{name}" for name in files_below(folder))]


def test_names_that_occur_twice_are_unpacked_once(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {"a.jpg": b"1", "A.JPG": b"2", "x/../a.jpg": b"3", "a.jpg/b.jpg": b"4"})
    (tmp_path / "out").mkdir()
    done = unpack_zip(archive, tmp_path / "out", SUFFIXES)
    assert done.files == ["a.jpg"] and len(done.skipped) == 3
    assert (tmp_path / "out" / "a.jpg").read_bytes() == b"1"


@settings(deadline=None)
@given(NAMES)
def test_no_name_leaves_its_folder(name: str) -> None:
    path = inner_path(name)
    with TemporaryDirectory() as folder:
        target = (Path(folder) / path).resolve()
        assert target.is_relative_to(Path(folder).resolve())
        assert (path == inner_path(path) and path.isprintable()) or path == ""
        if path:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()


@pytest.mark.parametrize(
    "limits",
    [
        ArchiveLimits(entries=2),
        ArchiveLimits(entry_bytes=(2 << 20) - 1),
        ArchiveLimits(total_bytes=4 << 20),
        ArchiveLimits(ratio=100),
    ],
    ids=["entries", "entry_bytes", "total_bytes", "ratio"],
)
def test_bombs_are_refused_before_anything_is_unpacked(limits: ArchiveLimits, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {"0.jpg": b"fine", "1.jpg": bytes(2 << 20), "2.jpg": bytes((2 << 20) + 1)})
    (tmp_path / "out").mkdir()
    with pytest.raises(TooLarge, match=r"^a.zip"):
        unpack_zip(archive, tmp_path / "out", SUFFIXES, limits)
    assert files_below(tmp_path / "out") == []
    check_zip(archive, ArchiveLimits(ratio=2000))


def test_a_directory_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Its records take memory, whatever their number is said to be."""
    archive = tmp_path / "a.zip"
    record = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", *([0] * 18)) + b""
    directory = record * 10_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), 0, 0)
    archive.write_bytes(directory + end)
    with pytest.raises(TooLarge, match="entries"):
        check_zip(archive, ArchiveLimits(entries=100))
    large = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    archive.write_bytes(large + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0, 0, 0))
    with pytest.raises(TooLarge, match="entries"):
        check_zip(archive)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    data = write_zip(tmp_path / "a.zip", {"1.jpg": bytes(range(256)) * 40}).read_bytes()
    (tmp_path / "out").mkdir()
    for number, bad in enumerate((b"", b"no archive", data[:-30], data[:40] + b"\xff" * 60 + data[100:])):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(bad)
        with pytest.raises(InvalidInput, match=rf"^{number}.zip"):
            unpack_zip(path, tmp_path / "out", SUFFIXES)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(compression: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="compression"):
        check_zip(write_zip(tmp_path / "a.zip", {"1.jpg": b"1"}, compression))


def test_passwords_are_refused(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", {"1.jpg": b"1"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InvalidInput, match="password"):
        check_zip(tmp_path / "a.zip")


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, 399))
def test_any_bytes_are_unpacked_or_refused(noise: bytes, place: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("1.jpg", b"a picture" * 9)
    data = buffer.getvalue()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.zip"
        (Path(folder) / "out").mkdir()
        path.write_bytes(data[:place] + noise + data[place + len(noise) :])
        try:
            unpack_zip(path, Path(folder) / "out", SUFFIXES)
        except InvalidInput as error:
            assert str(error).startswith("a.zip")
        assert set(files_below(Path(folder))) <= {"a.zip", "out/1.jpg"} | {
            f"out/{file}" for file in files_below(Path(folder) / "out")
        }
