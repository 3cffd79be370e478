#!/usr/bin/env python3
"""Writes blocks.gguf, tensors of every format that sash reads and metadata of every type, and
blocks.safetensors, the same tensors dequantised by the package gguf. Needs gguf and safetensors."""

import pathlib

import gguf
import numpy
import safetensors.numpy

FOLDER = pathlib.Path(__file__).parent
T = gguf.GGMLQuantizationType
random = numpy.random.default_rng(0)


def random_blocks(kind, rows, blocks, halves):
    """Bytes of any value but for the scales, float16 at the offsets `halves`."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = random.integers(0, 256, (rows, blocks, size), dtype=numpy.uint8)
    for at in halves:
        scale = random.normal(size=(rows, blocks, 1)).astype(numpy.float16)
        data[:, :, at : at + 2] = scale.view(numpy.uint8)
    return data.reshape(rows, blocks * size)


def main():
    writer = gguf.GGUFWriter(FOLDER / "blocks.gguf", "test")
    writer.add_uint8("a.uint8", 200)
    writer.add_int8("a.int8", -100)
    writer.add_uint16("a.uint16", 60000)
    writer.add_int16("a.int16", -30000)
    writer.add_uint32("a.uint32", 4000000000)
    writer.add_int32("a.int32", -2000000000)
    writer.add_float32("a.float32", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "caf\u00e9")
    writer.add_array("a.array", ["x", "", "yz"])
    writer.add_array("a.numbers", [1, 2, -3])
    writer.add_uint64("a.uint64", 2**63 + 5)
    writer.add_int64("a.int64", -(2**62))
    writer.add_float64("a.float64", 0.1)
    expected = {}
    values = random.normal(size=(3, 64)).astype(numpy.float32)
    for kind in (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1):
        data = gguf.quants.quantize(values, kind)
        name = kind.name.lower()
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = gguf.quants.dequantize(data, kind).astype(numpy.float32)
    for kind, halves in ((T.Q4_K, (0, 2)), (T.Q5_K, (0, 2)), (T.Q6_K, (208,))):
        data = random_blocks(kind, 2, 2, halves)
        writer.add_tensor(kind.name.lower(), data, raw_dtype=kind)
        expected[kind.name.lower()] = gguf.quants.dequantize(data, kind).astype(numpy.float32)
    for dtype in (numpy.int32, numpy.int64, numpy.float64):
        name = numpy.dtype(dtype).name
        expected[name] = random.integers(-9, 9, (2, 1, 3)).astype(dtype)
        writer.add_tensor(name, expected[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    safetensors.numpy.save_file(expected, FOLDER / "blocks.safetensors")


main()
