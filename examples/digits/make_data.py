#!/usr/bin/env python3
"""Writes digits.safetensors into this folder: scikit-learn's 8 x 8 digits.

    pip install scikit-learn safetensors numpy
    python examples/digits/make_data.py

`images` is uint8 [1797, 8, 8], pixels from 0 to 16, and `labels` uint8 [1797]. LICENSE.md says where
they come from.
"""

from pathlib import Path

from safetensors.numpy import save_file
from sklearn.datasets import load_digits

if __name__ == "__main__":
    digits = load_digits()
    tensors = {"images": digits.images.astype("uint8"), "labels": digits.target.astype("uint8")}
    notice = "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0"
    path = Path(__file__).parent / "digits.safetensors"
    save_file(tensors, path, metadata={"source": notice})
    print(f"{path.name}: {path.stat().st_size} bytes")
