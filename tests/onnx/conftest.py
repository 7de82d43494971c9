"""Models of ONNX, where onnx and onnxruntime are installed."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("onnx") is None or find_spec("onnxruntime") is None:
    collect_ignore_glob = ["test_*.py"]
