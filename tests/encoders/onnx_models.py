"""Small models, made here: nothing has to be downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write_model(
    path: Path, *, rows: int | str = "n", side: int | str = 16, layout: str = "NCHW", seed: int = 0, **sidecar: Any
) -> Path:
    """A convolution with two outputs: `maps` (n, 6, side, side) before `features` (n, 6)."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(seed).standard_normal((6, 3, 3, 3)).astype(np.float32)
    nhwc = layout == "NHWC"
    shape = [rows, side, side, 3] if nhwc else [rows, 3, side, side]
    nodes = [helper.make_node("Transpose", ["images"], ["turned"], perm=[0, 3, 1, 2])] if nhwc else []
    nodes += [
        helper.make_node("Conv", ["turned" if nhwc else "images", "W"], ["sums"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["sums"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("images", floats, shape)],
        [
            helper.make_tensor_value_info("maps", floats, [rows, 6, side, side]),
            helper.make_tensor_value_info("features", floats, [rows, 6]),
        ],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    if sidecar:
        path.with_suffix(".json").write_text(json.dumps({"layout": layout, **sidecar}))
    return path
