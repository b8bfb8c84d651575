"""Models of timm and open_clip, with random weights: where these libraries are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.encoders import open_encoder
from stillhash.encoders.torch_models import ModelName, parse_model_name
from stillhash.errors import InvalidInput, WrongType
from tests.encoders.sample_images import photo

IMAGES = [photo(60, 40, seed) for seed in range(3)]
TIMM, CLIP = "timm:resnet10t?pretrained=0", "clip:ViT-B-32?pretrained=0"


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module", params=[TIMM, CLIP])
def encoder(request: pytest.FixtureRequest, torch: Any) -> Any:
    library = "timm" if request.param is TIMM else "open_clip"
    pytest.importorskip(library, reason=f"{library} is not installed")
    return open_encoder(request.param)


def test_features(encoder: Any) -> None:
    features = encoder.encode(IMAGES)
    assert features.shape == (3, encoder.dim) and features.dtype == np.float32 and np.isfinite(features).all()
    np.testing.assert_array_equal(features, np.concatenate([encoder.encode([image]) for image in IMAGES]))
    assert len(np.unique(features, axis=0)) == 3 and encoder.encode([]).shape == (0, encoder.dim)


def test_the_same_when_opened_again(encoder: Any, torch: Any) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = open_encoder(encoder.name)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.fingerprint == encoder.fingerprint and again.name == encoder.name
    np.testing.assert_array_equal(again.encode(IMAGES), encoder.encode(IMAGES))


def test_texts(torch: Any) -> None:
    pytest.importorskip("open_clip", reason="open_clip is not installed")
    encoder = open_encoder(CLIP)
    texts = encoder.encode_texts(["a red circle", "a dog", "a red circle"])
    assert encoder.has_text and texts.shape == (3, encoder.dim) and texts.dtype == np.float32
    for features in (texts, encoder.encode(IMAGES)):
        np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(texts[0], texts[2])
    assert (texts[0] != texts[1]).any() and encoder.encode_texts([]).shape == (0, encoder.dim)
    for bad in ("one text", [5], [None]):
        with pytest.raises(WrongType, match=r"^texts"):
            encoder.encode_texts(bad)  # type: ignore[arg-type]


def test_weights_of_a_checkpoint(torch: Any, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(9)
    state = timm.create_model("resnet10t", pretrained=False).state_dict()  # with a classifier
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, path)
    from safetensors.torch import save_file

    save_file(state, tmp_path / "weights.safetensors")
    one, other = (open_encoder(f"timm:resnet10t:{tmp_path / name}") for name in ("weights.pth", "weights.safetensors"))
    assert one.fingerprint == other.fingerprint != open_encoder(TIMM).fingerprint
    np.testing.assert_array_equal(one.encode(IMAGES), other.encode(IMAGES))

    torch.save({"conv1.weight": torch.zeros(3)}, path)
    for bad in (path, tmp_path / "none.pth"):
        with pytest.raises(InvalidInput, match=rf"{bad.name}|conv1"):
            open_encoder(f"timm:resnet10t:{bad}")
    path.write_bytes(b"junk")
    with pytest.raises(InvalidInput, match=r"^encoder"):
        open_encoder(f"timm:resnet10t:{path}")


@pytest.mark.parametrize("name", ["timm:no_such_model?pretrained=0", "clip:no-such-model", "clip:no-such?pretrained=0"])
def test_unknown_models_are_refused(torch: Any, name: str) -> None:
    library = "timm" if name.startswith("timm") else "open_clip"
    pytest.importorskip(library, reason=f"{library} is not installed")
    with pytest.raises(InvalidInput, match=r"no.such"):
        open_encoder(name)


# ---- names, which need no library ----


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("resnet18", ModelName("resnet18", None, True, "cpu")),
        ("resnet18?pretrained=0", ModelName("resnet18", None, False, "cpu")),
        ("resnet18:/a/b.pth?device=cuda&pretrained=1", ModelName("resnet18", "/a/b.pth", True, "cuda")),
        ("hf-hub:timm/resnet18", ModelName("hf-hub:timm/resnet18", None, True, "cpu")),
        ("hf-hub:timm/resnet18:w.pth", ModelName("hf-hub:timm/resnet18", "w.pth", True, "cpu")),
        ("ViT-B-32:openai", ModelName("ViT-B-32", "openai", True, "cpu")),
    ],
)
def test_what_a_name_asks_for(name: str, parts: ModelName) -> None:
    assert parse_model_name(f"timm:{name}") == parts


@pytest.mark.parametrize("name", ["a?x=1", "a?pretrained=2", "a?pretrained", "a?device=", "?pretrained=0", ":path"])
def test_bad_options_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^encoder: .*'timm:"):
        parse_model_name(f"timm:{name}")
