// Every way in which a field of a safetensors file can be wrong, by name, and the error that it
// gives.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <sash/tensor/io/safetensors.h>

#include "../support/expect_error.h"
#include "../support/safetensors_bytes.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

enum class Fault {
  none,
  empty_file,
  file_of_7_bytes,
  length_above_100_mb,
  length_minus_1,
  length_beyond_file,
  length_100_mb_beyond_file,
  header_empty,
  header_is_list,
  header_after_space,
  header_cut,
  header_twice,
  header_with_comment,
  header_nul_padded,
  header_nul_and_more,
  header_without_value,
  key_not_utf8,
  value_cut_utf8,
  value_surrogate,
  key_duplicate,
  field_duplicate,
  metadata_duplicate,
  metadata_number,
  metadata_list,
  entry_is_number,
  entry_without_offsets,
  dtype_unknown,
  dtype_is_number,
  axes_9,
  axes_million,
  array_of_many_arrays,
  extent_minus_1,
  extent_fraction,
  extent_float_overflow,
  shape_is_number,
  shape_product_wraps,
  shape_bytes_wrap,
  shape_extent_2_64,
  shape_with_0_and_wrapping,
  offsets_single,
  offsets_negative,
  offsets_fraction,
  offsets_decreasing,
  offsets_of_another_size,
  hole_at_start,
  hole,
  overlap,
  overlap_whole,
  hole_at_end,
  data_cut,
  data_far_too_short,
  data_without_tensor,
  polyglot_zip_behind,
  polyglot_zip,
  polyglot_gguf,
  boolean_of_2,
  count,
};

struct Row {
  Fault fault;
  std::string bytes, error;
};

const std::string kFine = "nothing was thrown";

std::string json(const std::string& entries, size_t data = 0) {
  return file_of("{" + entries + "}", data);
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t data) {
  return json(entry("x", dtype, shape, offsets), data);
}

std::string two(const std::string& first, const std::string& second, size_t data) {
  return json(entry("x", "U8", "[2]", first) + "," + entry("y", "U8", "[2]", second), data);
}

std::vector<Row> rows() {
  using enum Fault;
  const std::string e = "FormatError: load_safetensors: expected ";
  const std::string parse = e + "a header of UTF-8 JSON, got ";
  const std::string half = R"({"dtype":"F32","shape":[]})";
  std::string ones = "[1";
  for (int i = 1; i < 1'000'000; ++i) ones += ",1";
  ones += "]";
  std::string lists = "[]";
  for (int i = 0; i < 64; ++i) lists += ",[]";
  return {
      {none, one("F32", "[1]", "[0,4]", 4), kFine},
      {empty_file, "", e + "a file of at least 8 bytes, got 0"},
      {file_of_7_bytes, "1234567", e + "a file of at least 8 bytes, got 7"},
      {length_above_100_mb, prefix(100'000'001) + "{}",
       e + "a header of at most 100000000 bytes, got 100000001"},
      {length_minus_1, prefix(~uint64_t{0}) + "{}",
       e + "a header of at most 100000000 bytes, got 18446744073709551615"},
      {length_beyond_file, prefix(3) + "{}",
       e + "a header of 3 bytes, got only 2 bytes after its length"},
      {length_100_mb_beyond_file, prefix(100'000'000) + "{}",
       e + "a header of 100000000 bytes, got only 2 bytes after its length"},
      {header_empty, prefix(0), e + "a header that begins with '{', got something else"},
      {header_is_list, file_of("[]"), e + "a header that begins with '{', got something else"},
      {header_after_space, file_of(" {}"), e + "a header that begins with '{', got something else"},
      {header_cut, file_of("{"), parse},
      {header_twice, file_of("{}{}"), parse},
      {header_with_comment, file_of("{}\n// comment"), parse},
      {header_nul_padded, file_of(std::string("{}\0\0", 4)),
       e + "a header of UTF-8 JSON, got a byte of 0"},
      {header_nul_and_more, file_of(std::string("{}\0{\"x\":3}", 10)),
       e + "a header of UTF-8 JSON, got a byte of 0"},
      {header_without_value, file_of("{\"x\":}"), parse},
      {key_not_utf8, file_of("{\"\xff\":{}}"), parse},
      {value_cut_utf8, file_of("{\"__metadata__\":{\"k\":\"\xc3\"}}"), parse},
      {value_surrogate, file_of("{\"__metadata__\":{\"k\":\"\xed\xa0\x80\"}}"), parse},
      {key_duplicate,
       json(entry("x", "U8", "[]", "[0,1]") + "," + entry("x", "U8", "[]", "[1,2]"), 2),
       e + "distinct keys, got 'x' twice"},
      {field_duplicate, json(R"("x":{"dtype":"U8","shape":[],"shape":[],"data_offsets":[0,1]})", 1),
       e + "distinct keys, got 'shape' twice"},
      {metadata_duplicate, json(R"("__metadata__":{"k":"","k":""})"),
       e + "distinct keys, got 'k' twice"},
      {metadata_number, json(R"("__metadata__":{"k":1})"),
       e + "strings in __metadata__, got {\"k\":1}"},
      {metadata_list, json(R"("__metadata__":[])"), e + "strings in __metadata__, got []"},
      {entry_is_number, json("\"x\":3"), e + "dtype, shape and data_offsets for 'x', got 3"},
      {entry_without_offsets, json("\"x\":" + half),
       e + "dtype, shape and data_offsets for 'x', got " + half},
      {dtype_unknown, one("F31", "[1]", "[0,4]", 4), e + "a known dtype for 'x', got 'F31'"},
      {dtype_is_number, json(R"("x":{"dtype":4,"shape":[],"data_offsets":[0,4]})", 4),
       e + "a dtype name for 'x', got 4"},
      {axes_9, one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1),
       "NotImplemented: load_safetensors: 'x' has 9 axes, and sash has at most 8"},
      {axes_million, one("U8", ones, "[0,1]", 1), e + "at most 64 values in an array, got more"},
      {array_of_many_arrays, json("\"x\":[" + lists + "]"),
       e + "at most 64 values in an array, got more"},
      {extent_minus_1, one("F32", "[-1]", "[0,4]", 4),
       e + "a shape of non-negative integers for 'x', got [-1]"},
      {extent_fraction, one("F32", "[1.0]", "[0,4]", 4),
       e + "a shape of non-negative integers for 'x', got [1.0]"},
      {extent_float_overflow, one("F32", "[1e400]", "[0,4]", 4), parse},
      {shape_is_number, one("F32", "1", "[0,4]", 4),
       e + "a shape of non-negative integers for 'x', got 1"},
      {shape_product_wraps, one("F32", "[4294967296,4294967296]", "[0,0]", 0),
       e + "a shape below 2^63 bytes for 'x', got [4294967296,4294967296]"},
      {shape_bytes_wrap, one("F64", "[2305843009213693952]", "[0,0]", 0),
       e + "a shape below 2^63 bytes for 'x', got [2305843009213693952]"},
      {shape_extent_2_64, one("U8", "[18446744073709551615]", "[0,0]", 0),
       e + "a shape below 2^63 bytes for 'x', got [18446744073709551615]"},
      {shape_with_0_and_wrapping, one("U8", "[4294967296,0,4294967296]", "[0,0]", 0),
       e + "a shape below 2^63 bytes for 'x', got [4294967296,0,4294967296]"},
      {offsets_single, one("F32", "[1]", "[0]", 4),
       e + "two non-negative data_offsets for 'x', got [0]"},
      {offsets_negative, one("F32", "[1]", "[-4,0]", 4),
       e + "two non-negative data_offsets for 'x', got [-4,0]"},
      {offsets_fraction, one("F32", "[1]", "[0,4.0]", 4),
       e + "two non-negative data_offsets for 'x', got [0,4.0]"},
      {offsets_decreasing, one("F32", "[1]", "[4,0]", 4),
       e + "data_offsets that do not decrease for 'x', got [4,0]"},
      {offsets_of_another_size, one("F32", "[3]", "[0,8]", 8),
       e + "12 bytes for 'x', got data_offsets [0,8] of 8 bytes"},
      {hole_at_start, one("F32", "[1]", "[4,8]", 8),
       e + "data of 'x' to begin at 0, got 4: a hole"},
      {hole, two("[0,2]", "[3,5]", 5), e + "data of 'y' to begin at 2, got 3: a hole"},
      {overlap, two("[0,2]", "[1,3]", 3), e + "data of 'y' to begin at 2, got 1: an overlap"},
      {overlap_whole, two("[0,2]", "[0,2]", 2), e + "data of 'y' to begin at 2, got 0: an overlap"},
      {hole_at_end, one("F32", "[1]", "[0,4]", 5),
       e + "tensors that end with the data at 5, got 4"},
      {data_cut, one("F32", "[1]", "[0,4]", 3), e + "tensors that end with the data at 3, got 4"},
      {data_far_too_short, one("F32", "[1000000000000]", "[0,4000000000000]", 8),
       e + "tensors that end with the data at 8, got 4000000000000"},
      {data_without_tensor, file_of("{}", 1), e + "tensors that end with the data at 1, got 0"},
      {polyglot_zip_behind, one("F32", "[1]", "[0,4]", 4) + "PK\5\6" + std::string(18, '\0'),
       e + "tensors that end with the data at 26, got 4"},
      {polyglot_zip, "PK\3\4" + std::string(60, '\0'),
       "FormatError: load_safetensors: is a zip archive; if it is PyTorch's or NumPy's, save it as "
       "safetensors"},
      {polyglot_gguf, "GGUF" + std::string(60, '\0'), "FormatError: load_safetensors: is "},
      {boolean_of_2, prefix(55) + "{" + entry("x", "BOOL", "[2]", "[0,2]") + "}" + "\x01\x02",
       e + "bytes of 0 and 1 in 'x', got 2"},
  };
}

}  // namespace

TEST_CASE("safetensors: every malformed field is a typed error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  std::set<Fault> seen;
  for (const Row& row : rows()) {
    CAPTURE(static_cast<int>(row.fault));
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << row.bytes;
    std::string error = thrown_by([&] { load_safetensors(path, kCPU); });
    const size_t named = error.find("'" + path + "'");
    CHECK((row.error == kFine || named != error.npos));
    if (named != error.npos) error.erase(named, path.size() + 3);
    if (error.ends_with("; in ")) error.resize(error.size() - 5);
    const bool whole = !row.error.ends_with("got ") && !row.error.ends_with("is ");
    CHECK((whole ? error : error.substr(0, row.error.size())) == row.error);
    CHECK(seen.insert(row.fault).second);
  }
  CHECK(seen.size() == static_cast<size_t>(Fault::count));
}

TEST_CASE("safetensors: deep JSON is refused") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("x"), std::ios::binary)
      << file_of("{\"x\":" + std::string(100'000, '['));
  CHECK_THROWS_AS(load_safetensors(folder.file("x")), FormatError);
}
