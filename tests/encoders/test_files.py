"""Many files by several processes: order, broken files, processes that die, and no more under way than is bounded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from stillhash.encoders import files, open_encoder
from stillhash.encoders.base import content_key
from stillhash.encoders.files import BATCHES_PER_WORKER, EncodedFile, encode_bytes, encode_files
from stillhash.errors import InvalidInput, WrongType
from tests.encoders.onnx_models import write_model
from tests.encoders.sample_images import decode, photo, samples, saved
from tests.support.waiting import until

FILES = 60
BROKEN = {7: b"no picture", 8: b"", 31: samples()["jpeg"][:300]}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of all kinds and sizes, three of them broken and one that is not there."""
    folder = tmp_path_factory.mktemp("pictures")
    images = [folder / f"{n:03}.img" for n in range(FILES)]
    for n, path in enumerate(images):
        kind = ("JPEG", "PNG", "WEBP", "GIF", "BMP")[n % 5]
        path.write_bytes(BROKEN.get(n, saved(photo(20 + 9 * n, 300 - 4 * n, n), kind)))
    images[40].unlink()
    return images


@pytest.fixture(scope="module")
def here(paths: list[Path]) -> list[EncodedFile]:
    return list(encode_files("classic", paths, workers=1, batch=7))


def same(one: EncodedFile, other: EncodedFile) -> bool:
    equal = (one.features is None) == (other.features is None)
    if one.features is not None and other.features is not None:
        equal = bool((one.features == other.features).all())
    return equal and one._replace(features=None) == other._replace(features=None)


@pytest.mark.medium
def test_entries_of_files(paths: list[Path], here: list[EncodedFile]) -> None:
    encoder = open_encoder("classic")
    assert [entry.path for entry in here] == [str(path) for path in paths]
    for n, (path, entry) in enumerate(zip(paths, here, strict=True)):
        if n in BROKEN:
            assert entry.error is not None and entry.error.startswith(f"{path}: ")
            assert entry == EncodedFile(str(path), None, content_key(BROKEN[n]), None, None, entry.error)
        elif n == 40:
            assert entry == EncodedFile(str(path), None, None, None, None, f"{path}: does not exist")
        else:
            assert entry.error is None and entry.features is not None and entry.thumbnail is not None
            assert entry.size == (20 + 9 * n, 300 - 4 * n) and entry.content == content_key(path.read_bytes())
            assert max(decode(entry.thumbnail).size) == min(160, max(entry.size))
            np.testing.assert_array_equal(entry.features, encode_bytes(encoder, path.read_bytes()))


@pytest.mark.medium
@pytest.mark.parametrize(("workers", "batch"), [(2, 7), (3, 64), (None, 5)])
def test_processes_give_the_same_in_order(
    paths: list[Path], here: list[EncodedFile], workers: int | None, batch: int
) -> None:
    there = list(encode_files("classic", iter(paths), workers=workers, batch=batch))
    assert all(same(*pair) for pair in zip(here, there, strict=True))
    assert not multiprocessing.active_children()


@pytest.mark.medium
def test_a_model_in_processes(paths: list[Path], tmp_path: Path) -> None:
    name = f"onnx:{write_model(tmp_path / 'm.onnx')}:maps"
    one, two = (list(encode_files(name, paths[:12], workers=workers, batch=3)) for workers in (1, 2))
    assert all(same(*pair) for pair in zip(one, two, strict=True)) and one[0].features is not None


@pytest.mark.medium
def test_features_do_not_depend_on_thumbnails(paths: list[Path], here: list[EncodedFile]) -> None:
    bare = list(encode_files("classic", paths, workers=1, thumbnails=False))
    assert all(entry.thumbnail is None for entry in bare)
    assert all(same(entry, full._replace(thumbnail=None)) for entry, full in zip(bare, here, strict=True))


def test_no_files_and_few_files(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("processes were started for a single batch")

    monkeypatch.setattr(files, "map_batches", never)
    assert list(encode_files("classic", [])) == []
    assert len(list(encode_files("classic", paths[:5]))) == 5


# ---- what goes wrong ----


def test_wrong_arguments_are_refused_at_once(paths: list[Path]) -> None:
    for bad in ({"workers": 0}, {"batch": 0}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            encode_files("classic", paths, **bad)
    for one in ("a.png", Path("a.png")):
        with pytest.raises(WrongType, match=r"^paths"):
            encode_files("classic", one)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^encoder"):
        encode_files("magic", paths, workers=2)


def test_ready_features_are_an_error_of_each_file(paths: list[Path]) -> None:
    for entry in encode_files("vectors:5", paths[:3], workers=1):
        assert entry.features is None and entry.error is not None and "encoder" in entry.error


def test_an_image_the_encoder_cannot_take_costs_no_other(
    paths: list[Path], here: list[EncodedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = open_encoder("classic")
    encode = type(encoder).encode

    def choosy(self: object, images: list[object]) -> object:
        if any(image.size == (20 + 9 * 3, 300 - 4 * 3) for image in images):  # type: ignore[attr-defined]
            raise RuntimeError("out of memory")
        return encode(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(type(encoder), "encode", choosy)
    entries = list(encode_files("classic", paths[:7], workers=1))
    assert entries[3].features is None and entries[3].error is not None and "out of memory" in entries[3].error
    assert all(same(entries[n], here[n]) for n in (0, 1, 2, 4, 5, 6))


@pytest.mark.slow
def test_a_process_that_dies_costs_only_the_file_it_dies_of(paths: list[Path], here: list[EncodedFile]) -> None:
    """A worker kills itself on certain files, as the system would; it happens in the process, so in a script."""
    script = f"""
import os, signal, sys
from stillhash.encoders import files

read = files.read_bytes

def deadly(path, *rest):
    if path.endswith(("003.img", "020.img", "021.img", "059.img")):
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path, *rest)

files.read_bytes = deadly  # a spawned process imports this script too, and so does the same

if __name__ == "__main__":
    folder = {str(paths[0].parent)!r}
    paths = [f"{{folder}}/{{n:03}}.img" for n in range({FILES})]
    for entry in files.encode_files("classic", paths, workers=2, batch=4):
        row = "" if entry.features is None else entry.features.tobytes().hex()
        print(entry.path, row or "-", entry.error or "-", sep="|")
"""
    file = paths[0].parent / "deadly.py"
    file.write_text(script)
    child = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert child.returncode == 0, child.stderr
    lines = [line.split("|") for line in child.stdout.splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in paths]
    for n, (_, row, error) in enumerate(lines):
        if n in (3, 20, 21, 59):
            assert row == "-" and error.startswith(str(paths[n]))
        else:
            features = here[n].features
            assert row == ("-" if features is None else features.tobytes().hex())
            assert error == (here[n].error or "-")


@pytest.mark.slow
def test_a_process_killed_from_outside(paths: list[Path], here: list[EncodedFile]) -> None:
    """It was no file's fault: all are encoded."""
    entries = []
    for entry in encode_files("classic", paths, workers=2, batch=4):
        entries.append(entry)
        if len(entries) in (1, 30):
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    assert all(same(*pair) for pair in zip(entries, here, strict=True))


@pytest.mark.slow
def test_a_script_without_a_guard_is_refused(tmp_path: Path) -> None:
    """Each process would run it again, and none would ever be ready."""
    file = tmp_path / "careless.py"
    file.write_text(
        "from stillhash.encoders.files import encode_files\nlist(encode_files('classic', ['a'] * 99, workers=2))"
    )
    child = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 1 and "InvalidInput: workers: " in child.stderr


# ---- bounds ----


@pytest.mark.medium
def test_no_more_under_way_than_is_bounded() -> None:
    """Paths are taken as results are: of endless ones, only so many ahead."""
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"none/{taken}.png"

    for workers in (1, 2):
        taken = 0
        entries = encode_files("classic", endless(), workers=workers, batch=5)
        for seen in range(1, 301):
            assert next(entries).error == f"none/{seen}.png: does not exist"
            assert taken <= seen + 5 * (BATCHES_PER_WORKER * workers + 1)
        entries.close()  # type: ignore[attr-defined]
        assert not multiprocessing.active_children()


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """Large pictures of which one alone takes several MiB: 20 of them, or 60, take the same."""
    path = tmp_path / "large.png"
    path.write_bytes(saved(photo(1400, 900), "PNG", compress_level=1))
    script = """
import resource, sys
from stillhash.encoders.files import encode_files
count = sum(e.error is None for e in encode_files("classic", [sys.argv[1]] * int(sys.argv[2]), workers=1, batch=8))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    peaks = []
    for count in (20, 60):
        command = [sys.executable, "-c", script, str(path), str(count)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
        assert int(output[0]) == count
        peaks.append(int(output[1]))
    assert peaks[1] < peaks[0] + 16  # MiB; a picture in full takes 5


@pytest.mark.slow
def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal at once; the parent reports it, and no process stays behind."""
    path = tmp_path / "p.jpg"
    path.write_bytes(saved(photo(200, 200), "JPEG"))
    script = f"""
import itertools
from stillhash.encoders.files import encode_files
if __name__ == "__main__":
    for n, entry in enumerate(encode_files("classic", itertools.repeat({str(path)!r}), workers=2)):
        if n == 100:
            print("going", flush=True)
"""
    file = tmp_path / "endless.py"
    file.write_text(script)
    child = subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None and child.stdout.readline() == "going\n"
    errors = ""
    for _ in range(3):  # Python drops an interrupt that arrives while it runs a destructor
        os.killpg(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            _, errors = child.communicate(timeout=20)
            break
    assert child.returncode == -signal.SIGINT and errors.strip().endswith("KeyboardInterrupt")
    until(lambda: not exists(child.pid), "end of all processes")


def exists(group: int) -> bool:
    """Return whether a process of this group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
