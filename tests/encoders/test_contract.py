"""What every encoder promises, over each that can be opened here; and how names are understood."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stillhash.encoders import ENCODER_NAMES, Encoder, base, open_encoder
from stillhash.encoders.files import encode_bytes
from stillhash.errors import InvalidInput, MissingExtra, WrongType
from tests.encoders.onnx_models import write_model
from tests.encoders.sample_images import decode, photo, samples, saved

SIZES = [(48, 32), (200, 200), (1, 1), (3, 500), (500, 3), (640, 480), (120, 120)]
IMAGES = [photo(*size, seed=seed) for seed, size in enumerate(SIZES)] + [Image.new("RGB", (64, 64), "white")]
NAMES = ("classic", "onnx", "onnx-fixed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "classic":
        return "classic"
    rows = 4 if request.param == "onnx-fixed" else "n"
    return f"onnx:{write_model(folder / f'{request.param}.onnx', rows=rows)}"


@pytest.fixture(scope="module")
def encoder(name: str) -> Encoder:
    return open_encoder(name)


def test_shape_and_kind(encoder: Encoder, name: str) -> None:
    features = encoder.encode(IMAGES)
    assert encoder.name == name
    assert features.shape == (len(IMAGES), encoder.dim) and features.dtype == np.float32
    assert features.flags.c_contiguous and np.isfinite(features).all()
    assert len(np.unique(features, axis=0)) == len(IMAGES)
    assert encoder.encode([]).shape == (0, encoder.dim) and encoder.encode([]).dtype == np.float32


def test_the_same_each_time_and_inputs_untouched(encoder: Encoder, name: str) -> None:
    before = [image.tobytes() for image in IMAGES]
    once, again, reopened = encoder.encode(IMAGES), encoder.encode(tuple(IMAGES)), open_encoder(name).encode(IMAGES)
    assert (once == again).all() and (once == reopened).all()
    assert [image.tobytes() for image in IMAGES] == before


def test_a_row_does_not_depend_on_its_batch(encoder: Encoder) -> None:
    whole = encoder.encode(IMAGES * 3)
    alone = np.concatenate([encoder.encode([image]) for image in IMAGES * 3])
    turned = encoder.encode(IMAGES[::-1])[::-1]
    np.testing.assert_array_equal(whole, alone)
    np.testing.assert_array_equal(whole[: len(IMAGES)], turned)


def test_other_modes_are_taken(encoder: Encoder) -> None:
    grey = IMAGES[0].convert("L")
    np.testing.assert_array_equal(encoder.encode([grey]), encoder.encode([grey.convert("RGB")]))
    assert np.isfinite(encoder.encode([IMAGES[0].convert(mode) for mode in ("1", "P", "RGBA", "CMYK", "I", "F")])).all()


@pytest.mark.medium
def test_fingerprints_and_features_are_the_same_in_another_process(encoder: Encoder, name: str) -> None:
    script = (
        "import sys; from stillhash.encoders import open_encoder; from tests.encoders.test_contract import IMAGES;"
        "e = open_encoder(sys.argv[1]); print(e.fingerprint, e.dim, e.encode(IMAGES).tobytes().hex())"
    )
    command = [sys.executable, "-c", script, name]
    output = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert output == [encoder.fingerprint, str(encoder.dim), encoder.encode(IMAGES).tobytes().hex()]
    assert re.fullmatch("[0-9a-f]{64}", encoder.fingerprint)


def test_a_query_gets_the_features_of_its_file(encoder: Encoder) -> None:
    data = saved(photo(900, 700), "JPEG")
    row = encode_bytes(encoder, data)
    assert row.shape == (encoder.dim,)
    exact = encoder.encode([decode(data)])[0]
    assert np.linalg.norm(row - exact) < 0.15 * np.linalg.norm(exact)
    with pytest.raises(InvalidInput, match=r"^q: "):
        encode_bytes(encoder, samples()["png"][:-20], "q")


def test_without_a_text_tower(encoder: Encoder) -> None:
    assert encoder.has_text is False
    with pytest.raises(InvalidInput, match=rf"^encoder: .*{re.escape(encoder.name)}"):
        encoder.encode_texts(["a red circle"])


@pytest.mark.parametrize("images", [photo(), [b"bytes"], ["path.png"], [np.zeros((4, 4, 3))], [None]])
def test_what_is_no_image_is_refused(encoder: Encoder, images: Any) -> None:
    with pytest.raises(WrongType, match=r"^images"):
        encoder.encode(images)


def test_an_empty_image_is_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidInput, match=r"^images\[1\].*0 x 5"):
        encoder.encode([photo(), Image.new("RGB", (0, 5))])


# ---- names ----


def test_ready_features() -> None:
    encoder = open_encoder("vectors:128")
    assert (encoder.name, encoder.dim, encoder.has_text) == ("vectors:128", 128, False)
    assert encoder.fingerprint == open_encoder("vectors:128").fingerprint != open_encoder("vectors:129").fingerprint
    with pytest.raises(InvalidInput, match=r"^encoder: .*vectors:128"):
        encoder.encode([photo()])
    with pytest.raises(InvalidInput, match=r"^encoder"):
        encoder.encode_texts(["x"])


UNKNOWN = [
    "",
    "Classic",
    "classic:",
    "classic:2",
    "onnx",
    "onnx:",
    "timm:",
    "clip:",
    "vectors",
    "vectors:",
    "vectors:x",
    "words:",
    "words:2",
    "static",
    "static:",
    "sentence:",
    "onnx-text",
    "onnx-text:",
]


@pytest.mark.parametrize("name", [*UNKNOWN, "vectors:-1", "vectors:1.5", "vectors:٣", "magic", "vectors:" + "9" * 5000])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^encoder") as error:
        open_encoder(name)
    assert all(known in str(error.value) for known in ENCODER_NAMES)


def test_bad_names_are_refused() -> None:
    for bad in (None, 5, b"classic"):
        with pytest.raises(WrongType, match=r"^encoder"):
            open_encoder(bad)  # type: ignore[arg-type]
    for bad in ("vectors:0", "vectors:100000"):
        with pytest.raises(InvalidInput, match=r"^DIM"):
            open_encoder(bad)


@pytest.mark.parametrize(
    ("name", "hidden", "extra"),
    [("onnx:m.onnx", "onnxruntime", "onnx"), ("timm:resnet18", "torch", "torch"), ("clip:ViT-B-32", "torch", "torch")],
)
def test_a_missing_library_is_named(name: str, hidden: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)  # importing it fails
    with pytest.raises(MissingExtra, match=rf"{name}.*{hidden}.*pip install 'stillhash\[{extra}\]'"):
        open_encoder(name)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready features need none; the rest says what to install."""
    for module in [name for name in sys.modules if name.startswith(("PIL", "stillhash.encoders"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "PIL", None)
    fresh = importlib.import_module("stillhash.encoders")
    assert fresh is not base and fresh.open_encoder("vectors:3").dim == 3
    assert fresh.open_encoder("words").dim == 256
    for name in ("classic", "onnx:m.onnx", "timm:resnet18"):
        with pytest.raises(MissingExtra, match=r"PIL.*pip install 'stillhash\[images\]'"):
            fresh.open_encoder(name)
