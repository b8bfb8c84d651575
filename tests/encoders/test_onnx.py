"""Model files: outputs, sidecars, batches, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stillhash.encoders import open_encoder
from stillhash.encoders.onnx import Onnx, Preprocess, read_preprocess
from stillhash.errors import InvalidInput
from tests.encoders.onnx_models import write_model
from tests.encoders.sample_images import photo

IMAGES = [photo(40, 30, seed) for seed in range(7)]
LAST, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def relu_means(encoder: Onnx, images: list[Image.Image], seed: int = 0) -> np.ndarray:
    """What the small model computes, in plain NumPy."""
    weights = np.random.default_rng(seed).standard_normal((6, 3, 3, 3)).astype(np.float32)
    rows = []
    for image in images:
        pixels = encoder.preprocess.array(image)
        if encoder.preprocess.layout == "NHWC":
            pixels = pixels.transpose(2, 0, 1)
        padded = np.pad(pixels, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        sums = np.einsum("chwij,ocij->ohw", windows, weights)
        rows.append(np.maximum(sums, 0).mean(axis=(1, 2)))
    return np.stack(rows)


@pytest.mark.parametrize("rows", ["n", 1, 3, 16])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_any_number_of_images_at_once(tmp_path: Path, rows: int | str, layout: str) -> None:
    encoder = Onnx(write_model(tmp_path / "m.onnx", rows=rows, layout=layout))
    assert encoder.preprocess == Preprocess(size=(16, 16), layout=layout) and encoder.dim == 6
    for count in (1, 2, 3, 7):
        np.testing.assert_allclose(encoder.encode(IMAGES[:count]), relu_means(encoder, IMAGES[:count]), rtol=1e-4)


def test_outputs_by_name(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    last, features, maps = (open_encoder(f"onnx:{path}{output}") for output in ("", ":features", ":maps"))
    assert last.name == f"onnx:{path}" and maps.name == f"onnx:{path}:maps"
    np.testing.assert_array_equal(last.encode(IMAGES), features.encode(IMAGES))
    np.testing.assert_allclose(maps.encode(IMAGES), features.encode(IMAGES), rtol=1e-5)  # averaged over space
    assert last.fingerprint == features.fingerprint != maps.fingerprint
    with pytest.raises(InvalidInput, match=r"output: .*maps, features.*'other'"):
        open_encoder(f"onnx:{path}:other")


def test_a_colon_in_a_path(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a:b.onnx")
    assert open_encoder(f"onnx:{path}").dim == open_encoder(f"onnx:{path}:maps").dim == 6


def test_the_sidecar_says_how(tmp_path: Path) -> None:
    size, output = [12, 20], "maps"
    options = {"mean": [0, 0, 0], "std": [1, 1, 1], "scale": 1, "color": "BGR", "crop": "none", "output": output}
    encoder = Onnx(write_model(tmp_path / "m.onnx", side="s", size=size, **options))
    assert encoder.output == "maps" and encoder.decode_size == (24, 40)
    array = encoder.preprocess.array(IMAGES[0])
    expected = np.asarray(IMAGES[0].resize((12, 20), Image.Resampling.BILINEAR))[..., ::-1].transpose(2, 0, 1)
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_allclose(encoder.encode(IMAGES), relu_means(encoder, IMAGES), rtol=1e-4)


def test_the_middle_is_cut_out() -> None:
    """As with shorter side 256 and a crop of 224: a sixteenth is lost on each short side, and more on the long ones."""
    image = Image.new("RGB", (512, 256), "white")
    image.paste("black", (144, 16, 368, 240))
    plain = Preprocess(mean=(0, 0, 0), std=(1, 1, 1))
    assert plain.array(image).max() == 0
    assert Preprocess(mean=(0, 0, 0), std=(1, 1, 1), resize=250).array(image).max() == 1
    assert plain.array(image).shape == (3, 224, 224) and plain.decode_size == (512, 512)
    assert Preprocess(size=(100, 50), layout="NHWC").array(photo(9, 300)).shape == (50, 100, 3)
    gray = Preprocess().array(Image.new("RGB", (50, 50), (124, 116, 104)))
    np.testing.assert_allclose(gray, 0, atol=0.02)


def test_fingerprints_change_with_all_that_matters(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    fingerprints = [Onnx(path).fingerprint, Onnx(path, "maps").fingerprint]
    fingerprints.append(Onnx(write_model(tmp_path / "other.onnx", seed=1)).fingerprint)
    defaults = {"size": [16, 16], "mean": list(LAST), "std": list(STD), "scale": 255, "crop": "center"}
    for change in ({"scale": 1}, {"crop": "none"}, {"color": "BGR"}, {"resize": 20}, {"blend": "bicubic"}):
        path.with_suffix(".json").write_text(json.dumps({**defaults, **change}))
        fingerprints.append(Onnx(path).fingerprint)
    (tmp_path / "m.onnx.data").write_bytes(b"weights beside")
    fingerprints.append(Onnx(path).fingerprint)
    assert len(set(fingerprints)) == len(fingerprints)

    copy = tmp_path / "elsewhere"
    copy.mkdir()
    shutil.copy(path, copy / "renamed.onnx")
    assert Onnx(copy / "renamed.onnx").fingerprint == fingerprints[0]  # the folder does not matter
    (copy / "renamed.json").write_text(json.dumps(defaults))
    assert Onnx(copy / "renamed.onnx").fingerprint == fingerprints[0]  # nor whether defaults are spelt out


@pytest.mark.parametrize(
    "options",
    [
        "",
        "[]",
        "no JSON",
        "[" * 100_000,
        '{"sise": [224, 224]}',
        '{"size": 0}',
        '{"size": [224]}',
        '{"size": [22.5, 224]}',
        '{"size": [100000, 224]}',
        '{"size": "224"}',
        '{"size": true}',
        '{"mean": [0, 0]}',
        '{"mean": 0}',
        '{"mean": [0, 0, NaN]}',
        '{"mean": ["a", 0, 0]}',
        '{"std": [0, 1, 1]}',
        '{"scale": 0}',
        '{"scale": null}',
        '{"scale": 1e999}',
        '{"layout": "CHW"}',
        '{"layout": ["NCHW"]}',
        '{"color": "rgb"}',
        '{"crop": "corner"}',
        '{"resize": 3}',
        '{"blend": "nearest"}',
        '{"output": 3}',
    ],
)
def test_bad_sidecars_are_refused(tmp_path: Path, options: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(options)
    with pytest.raises(InvalidInput, match=r"m\.json"):
        read_preprocess(path)


def test_bad_models_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.onnx")
    whole = path.read_bytes()
    with pytest.raises(InvalidInput, match=r"none\.onnx"):
        open_encoder(f"onnx:{tmp_path / 'none.onnx'}")
    with pytest.raises(InvalidInput, match=r"^encoder"):
        open_encoder(f"onnx:{tmp_path}")
    for damage in (b"", b"junk", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(damage)
        with pytest.raises(InvalidInput, match=r"^encoder: .*m\.onnx"):
            open_encoder(f"onnx:{path}")
    assert capfd.readouterr().err == ""


def test_a_sidecar_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"m\.onnx.*[Gg]ot"):
        Onnx(write_model(tmp_path / "m.onnx", side=16, size=[24, 24]))


def test_features_that_overflow_are_refused(tmp_path: Path) -> None:
    encoder = Onnx(write_model(tmp_path / "m.onnx", size=[16, 16], scale=1e-37, mean=[0, 0, 0]))
    with pytest.raises(InvalidInput, match=r"^encoder: .*finite"):
        encoder.encode(IMAGES)


@pytest.mark.parametrize("wrong", [{"shape": ["n", 3]}, {"inputs": 2}])
def test_models_of_something_else_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    shape = wrong.get("shape", ["n", 3, 8, 8])
    names = [f"in{n}" for n in range(wrong.get("inputs", 1))]
    inputs = [helper.make_tensor_value_info(name, floats, shape) for name in names]
    outputs = [helper.make_tensor_value_info("out", floats, shape)]
    graph = helper.make_graph([helper.make_node("Sum", names, ["out"])], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidInput, match=r"inputs: .*in0"):
        open_encoder(f"onnx:{tmp_path / 'm.onnx'}")
