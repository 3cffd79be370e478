// Every way in which a field of a GGUF file can be wrong, by name, and the error that it gives.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include <sash/tensor/io/gguf.h>

#include "../support/gguf_bytes.h"

using namespace sash;
using namespace sash::testing;

namespace {

enum class GgufFault {
  none,
  magic_of_another,
  version_1,
  version_4,
  big_endian,
  tensor_count_2_63,
  key_count_2_63,
  counts_beyond_file,
  key_length_minus_1,
  key_duplicate,
  key_cut,
  type_13,
  type_minus_1,
  bool_of_2,
  string_length_minus_1,
  string_beyond_file,
  array_of_type_13,
  array_count_2_63,
  array_bytes_wrap,
  array_beyond_file,
  array_of_arrays_too_deep,
  array_with_a_wrong_bool,
  alignment_0,
  alignment_13,
  alignment_2_31,
  alignment_of_type_string,
  alignment_of_type_int,
  name_length_minus_1,
  name_duplicate,
  axes_9,
  axes_million,
  extent_2_63,
  extent_minus_1,
  extents_product_wraps,
  extents_product_wraps_to_0,
  extents_with_0,
  extents_with_0_and_wrapping,
  blocks_cut,
  format_unknown,
  offset_not_first,
  offset_overlap,
  offset_hole,
  offset_unaligned,
  offset_2_64,
  offset_plus_bytes_wraps,
  data_cut,
  data_past_the_end,
  count,
};

struct GgufRow {
  GgufFault fault;
  std::string bytes, error;
};

const std::string kFine = "nothing was thrown";
const std::string kFormat = "FormatError: GgufFile: expected ";
const std::string kMissing = "NotImplemented: GgufFile: ";
constexpr uint64_t kHalf = uint64_t{1} << 63;

// A tensor "w" of these extents, and `bytes` of elements.
std::string tensor_of(const std::vector<uint64_t>& extents, uint32_t format, uint64_t offset,
                      size_t bytes) {
  return GgufBytes().start(1, 0).entry("w", extents, format, offset).pad(bytes).text;
}

// Two tensors of 8 bytes, the second at `offset`.
std::string second_at(uint64_t offset, size_t bytes) {
  return GgufBytes().start(2, 0).entry("w", {2}, 0, 0).entry("v", {2}, 0, offset).pad(bytes).text;
}

GgufBytes key(uint32_t type) {
  GgufBytes bytes;
  bytes.start(0, 1).name("k").add(type);
  return bytes;
}

GgufBytes array(uint32_t type, uint64_t elements) { return key(9).add(type).add(elements); }

template <class T>
std::string alignment(uint32_t type, T value) {
  return GgufBytes().start(0, 1).name("general.alignment").add(type).add(value).pad().text;
}

std::string nested_arrays(int depth) {
  GgufBytes bytes = key(9);
  for (int i = 1; i < depth; ++i) bytes.add(uint32_t{9}).add(uint64_t{1});
  return bytes.add(uint32_t{0}).add(uint64_t{0}).pad().text;
}

std::string million_axes() {
  GgufBytes bytes;
  bytes.start(1, 0).name("w").add(uint32_t{1'000'000});
  for (int i = 0; i < 1'000'000; ++i) bytes.add(uint64_t{1});
  return bytes.add(uint32_t{0}).add(uint64_t{0}).pad(4).text;
}

std::string twice(bool tensors) {
  GgufBytes bytes;
  if (tensors) return bytes.start(2, 0).entry("w", {2}, 0, 0).entry("w", {2}, 0, 32).pad(40).text;
  bytes.start(0, 2);
  for (int i = 0; i < 2; ++i) bytes.name("k").add(uint32_t{0}).add('a');
  return bytes.text;
}

std::string counted(uint64_t tensors, uint64_t keys) {
  return kFormat + "a file that holds " + std::to_string(tensors) + " tensors and " +
         std::to_string(keys) + " keys, got 24 bytes";
}

std::string elements(uint64_t count, const std::string& left) {
  return kFormat + std::to_string(count) + " elements of metadatum 'k', got only " + left +
         " bytes before the end of the file";
}

std::string left(const std::string& what, const std::string& bytes) {
  return kFormat + what + ", got only " + bytes + " before the end of the file";
}

std::vector<GgufRow> gguf_rows() {
  using enum GgufFault;
  const std::string alignments = kFormat + "general.alignment of a power of 2 up to 2^20, got ";
  const std::string many = kFormat + "fewer than 2^60 elements of 'w', got more";
  return {
      {none, tensor_of({2}, 0, 0, 8), kFine},
      {magic_of_another, "PK\3\4",
       kFormat + "a file that begins with 'GGUF', got a zip archive; if it is PyTorch's or "
                 "NumPy's, save it as safetensors"},
      {version_1, GgufBytes().start(0, 0, 1).text,
       kMissing + "the file is of version 1; sash reads 2 and 3"},
      {version_4, GgufBytes().start(0, 0, 4).text, kFormat + "version 2 or 3, got 4"},
      {big_endian, GgufBytes().start(0, 0, 3u << 24).text, kMissing + "the file is big-endian"},
      {tensor_count_2_63, GgufBytes().start(kHalf, 0).text, counted(kHalf, 0)},
      {key_count_2_63, GgufBytes().start(0, kHalf).text, counted(0, kHalf)},
      {counts_beyond_file, GgufBytes().start(uint64_t{1} << 60, 0).text,
       counted(uint64_t{1} << 60, 0)},
      {key_length_minus_1, GgufBytes().start(0, 1).add(UINT64_MAX).pad(32).text,
       left("18446744073709551615 bytes of metadatum 0", "32")},
      {key_duplicate, twice(false), kFormat + "distinct keys, got 'k' twice"},
      {key_cut, GgufBytes().start(0, 1).add(uint64_t{9}).add('k').pad().text.substr(0, 37),
       left("9 bytes of metadatum 0", "5")},
      {type_13, key(13).pad(9).text, kFormat + "a type from 0 to 12 for metadatum 'k', got 13"},
      {type_minus_1, key(UINT32_MAX).pad(9).text,
       kFormat + "a type from 0 to 12 for metadatum 'k', got 4294967295"},
      {bool_of_2, key(7).add(uint8_t{2}).pad(9).text,
       kFormat + "a bool of 0 or 1 for metadatum 'k', got 2"},
      {string_length_minus_1, key(8).add(UINT64_MAX).text,
       left("18446744073709551615 bytes of metadatum 'k'", "0")},
      {string_beyond_file, key(8).add(uint64_t{99}).text, left("99 bytes of metadatum 'k'", "0")},
      {array_of_type_13, array(13, 1).pad(64).text,
       kFormat + "a type from 0 to 12 for metadatum 'k', got 13"},
      {array_count_2_63, array(0, kHalf).text, elements(kHalf, "0")},
      {array_bytes_wrap, array(11, uint64_t{1} << 61).pad(64).text,
       elements(uint64_t{1} << 61, "79")},
      {array_beyond_file, array(8, 2).add(uint64_t{0}).text, elements(2, "8")},
      {array_of_arrays_too_deep, nested_arrays(6),
       kFormat + "metadatum 'k' nested at most 4 deep, got a deeper array"},
      {array_with_a_wrong_bool, array(7, 2).add(uint8_t{1}).add(uint8_t{255}).text,
       kFormat + "a bool of 0 or 1 for metadatum 'k', got 255"},
      {alignment_0, alignment(4, uint32_t{0}), alignments + "0"},
      {alignment_13, alignment(4, uint32_t{13}), alignments + "13"},
      {alignment_2_31, alignment(4, uint32_t{1} << 31), alignments + "2147483648"},
      {alignment_of_type_string,
       GgufBytes().start(0, 1).name("general.alignment").add(uint32_t{8}).name("32").text,
       kFormat + "a uint32 for 'general.alignment', got a string"},
      {alignment_of_type_int, alignment(5, int32_t{-32}), alignments + "-32"},
      {name_length_minus_1, GgufBytes().start(1, 0).add(UINT64_MAX).pad(32).text,
       left("18446744073709551615 bytes of tensor 0", "32")},
      {name_duplicate, twice(true), kFormat + "distinct tensors, got 'w' twice"},
      {axes_9, tensor_of({1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, 8),
       kMissing + "'w' has 9 axes, and sash has at most 8"},
      {axes_million, million_axes(), kMissing + "'w' has 1000000 axes, and sash has at most 8"},
      {extent_2_63, tensor_of({kHalf}, 0, 0, 8), many},
      {extent_minus_1, tensor_of({UINT64_MAX}, 0, 0, 8), many},
      {extents_product_wraps, tensor_of({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0, 8), many},
      {extents_product_wraps_to_0, tensor_of({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0, 8),
       many},
      {extents_with_0, tensor_of({0, 5}, 0, 0, 0), kFine},
      {extents_with_0_and_wrapping, tensor_of({uint64_t{1} << 40, 0, uint64_t{1} << 40}, 0, 0, 0),
       many},
      {blocks_cut, tensor_of({16, 2}, 2, 0, 40),
       kFormat + "rows of whole blocks of 32 for 'w', got shape [2, 16]"},
      {format_unknown, tensor_of({32}, 20, 0, 40),
       kMissing + "'w' has format IQ4_NL, which sash does not read"},
      {offset_not_first, tensor_of({2}, 0, 32, 40),
       kFormat + "elements of 'w' at offset 0, got 32"},
      {offset_overlap, second_at(0, 40), kFormat + "elements of 'v' at offset 32, got 0"},
      {offset_hole, second_at(64, 96), kFormat + "elements of 'v' at offset 32, got 64"},
      {offset_unaligned, second_at(8, 40), kFormat + "elements of 'v' at offset 32, got 8"},
      {offset_2_64, second_at(UINT64_MAX - 31, 40),
       kFormat + "elements of 'v' at offset 32, got 18446744073709551584"},
      {offset_plus_bytes_wraps,
       GgufBytes()
           .start(2, 0)
           .entry("w", {32}, 20, 0)
           .entry("v", {8}, 0, UINT64_MAX - 31)
           .pad(40)
           .text,
       left("32 bytes of 'v'", "0")},
      {data_cut, tensor_of({2}, 0, 0, 7), left("8 bytes of 'w'", "7")},
      {data_past_the_end, tensor_of({2}, 0, 0, 80), kFine},
  };
}

}  // namespace

TEST_CASE("gguf: every malformed field is a typed error") {
  std::set<GgufFault> seen;
  for (const GgufRow& row : gguf_rows()) {
    CAPTURE(static_cast<int>(row.fault));
    CHECK(gguf_error(row.bytes) == row.error);
    CHECK(seen.insert(row.fault).second);
  }
  CHECK(seen.size() == static_cast<size_t>(GgufFault::count));
  expect_error<IoError>("GgufFile: cannot open '/no/file': No such file or directory",
                        [] { GgufFile("/no/file"); });
}
