#include <doctest/doctest.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "../support/safetensors_bytes.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Truncating a file in place would make some file systems wait for the disk.
void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const auto bytes = static_cast<size_t>(a.numel() * size_of(a.dtype()));
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (bytes == 0 || std::memcmp(a.tensor_view().data, b.tensor_view().data, bytes) == 0);
}

/// Distinct bytes, so that a wrong offset shows; 0 and 1 for bool.
Tensor filled(const Shape& shape, DType dtype, int salt) {
  std::string bytes(static_cast<size_t>(numel(shape) * size_of(dtype)), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto value = static_cast<uint8_t>(37 * i + 11 * static_cast<size_t>(salt));
    bytes[i] = static_cast<char>(dtype == DType::boolean ? value % 2 : value);
  }
  return from_host(bytes.data(), shape, dtype);
}

}  // namespace

TEST_CASE("safetensors: every dtype and shape survives a round trip") {
  const TemporaryFolder folder;
  StateDict dict;
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    int salt = 8 * d;
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 7}, Shape{2, 0, 3}, Shape{0},
                               Shape{1, 2, 1, 2, 1, 2, 1, 1}}) {
      const std::string name = std::string(sash::name(dtype)) + " " + to_string(shape);
      dict.emplace_back(name, filled(shape, dtype, ++salt));
    }
  }
  const std::map<std::string, std::string> metadata{
      {"format", "sash"}, {"quote \" and \\", "line\nbreak, \xc3\xa9, \xe2\x82\xac"}, {"", ""}};
  save_safetensors(folder.file("x"), dict, metadata);
  const SafetensorsFile file = load_safetensors(folder.file("x"));
  CHECK(file.metadata == metadata);
  REQUIRE(file.tensors.size() == dict.size());
  for (const auto& item : dict) {
    CAPTURE(item.first);
    const Tensor* loaded = find(file.tensors, item.first);
    REQUIRE(loaded);
    CHECK(same_bytes(*loaded, item.second));
  }
  CHECK(find(file.tensors, "absent") == nullptr);
}

TEST_CASE("safetensors: views are written in row-major order") {
  const TemporaryFolder folder;
  const Tensor x = filled({4, 6}, DType::float32, 3).requires_grad_();
  const Tensor transposed = x.transpose(0, 1);
  const Tensor column = x.slice(1, 1, 6, 2);
  const Tensor row = x[2];
  save_safetensors(folder.file("x"), {{"t", transposed}, {"c", column}, {"r", row}});
  const StateDict loaded = load_safetensors(folder.file("x")).tensors;
  CHECK(same_bytes(*find(loaded, "t"), transposed.contiguous()));
  CHECK(same_bytes(*find(loaded, "c"), column.contiguous()));
  CHECK(same_bytes(*find(loaded, "r"), row.contiguous()));
  CHECK_FALSE(find(loaded, "t")->requires_grad());
}

TEST_CASE("safetensors: the bytes of a file, widest elements first, then by name") {
  const TemporaryFolder folder;
  save_safetensors(folder.file("x"),
                   {{"b", tensor<uint8_t>({7, 9})},
                    {"z", tensor<float>({1})},
                    {"a", tensor<int32_t>({-2})},
                    {"w", tensor<double>({0.5})}},
                   {{"k", "v"}});
  const std::string header =
      "{\"__metadata__\":{\"k\":\"v\"},"
      "\"w\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[8,12]},"
      "\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[16,18]}}";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const double w = 0.5;
  const int32_t a = -2;
  const float z = 1;
  std::string data(18, '\0');
  std::memcpy(&data[0], &w, 8);
  std::memcpy(&data[8], &a, 4);
  std::memcpy(&data[12], &z, 4);
  data[16] = 7;
  data[17] = 9;
  CHECK(read_bytes(folder.file("x")) ==
        prefix(header.size() + padding.size()) + header + padding + data);
}

TEST_CASE("safetensors: unusual but valid files") {
  const TemporaryFolder folder;
  const auto load = [&](const std::string& bytes) {
    write_bytes(folder.file("x"), bytes);
    return load_safetensors(folder.file("x"));
  };
  CHECK(load(file_of("{}")).tensors.empty());
  CHECK(load(file_of("{}      ")).tensors.empty());
  CHECK(load(file_of("{\"__metadata__\":{}}")).metadata.empty());
  CHECK(load(file_of("{" + entry("x", "F32", "[]", "[0,4]") + "}", 4)).tensors[0].second.rank() ==
        0);
  const std::string unordered = "{" + entry("a", "U8", "[2]", "[3,5]") + "," +
                                entry("e", "U8", "[0]", "[3,3]") + "," +
                                entry("b", "U8", "[3]", "[0,3]") + "}";
  const SafetensorsFile file = load(prefix(unordered.size()) + unordered + "\x01\x02\x03\x04\x05");
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.tensors[0].first == "b");
  CHECK(file.tensors[1].first == "e");
  CHECK(same_bytes(file.tensors[2].second, tensor<uint8_t>({4, 5})));
  save_safetensors(folder.file("empty"), {});
  CHECK(read_bytes(folder.file("empty")) == file_of("{}      "));
}

TEST_CASE("safetensors: a damaged file is read or gives a typed error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  save_safetensors(
      path, {{"a", filled({2, 3}, DType::float32, 1)}, {"b", filled({5}, DType::boolean, 2)}},
      {{"k", "v"}});
  const std::string whole = read_bytes(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    write_bytes(path, whole.substr(0, length));
    CHECK_THROWS_AS(load_safetensors(path), FormatError);
  }
  std::mt19937 random(7);
  int refused = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::string damaged = whole;
    for (int i = 0; i <= trial % 3; ++i) {
      const size_t at = random() % (whole.size() - 29);  // the length and the header
      damaged[at] = "0123456789[]{},:\"\\-\xff e"[random() % 22];
    }
    write_bytes(path, damaged);
    try {
      load_safetensors(path);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("safetensors: the time of a header grows as its entries do") {
  const TemporaryFolder folder;
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {  // an hour, if it grew with their square
    header += (i == 0 ? "" : ",") + entry("t" + std::to_string(i), "U8", "[0]", "[0,0]");
  }
  write_bytes(folder.file("x"), file_of(header + "}"));
  CHECK(load_safetensors_header(folder.file("x")).entries.size() == 100'000);
}

TEST_CASE("safetensors: valid files with dtypes or ranks that sash lacks") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  const std::pair<std::string, int> lacking[] = {
      {"I8", 1},  {"I16", 2}, {"U16", 2},     {"U32", 4},     {"U64", 8},
      {"C64", 8}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [dtype, bytes] : lacking) {
    const std::string end = std::to_string(2 * bytes), past = std::to_string(2 * bytes + 3);
    write_bytes(path, file_of("{" + entry("x", dtype, "[2]", "[0," + end + "]") + "," +
                                  entry("y", "U8", "[3]", "[" + end + "," + past + "]") + "}",
                              static_cast<size_t>(2 * bytes + 3)));
    const std::string cast = dtype == "I8" || dtype == "I16" || dtype == "U16"
                                 ? "as int32 with IntegerCast::widen; "
                             : dtype == "U32" ? "as int64 with IntegerCast::widen; "
                                              : "";
    const std::string message = "load_safetensors: sash cannot read 'x' of dtype " + dtype +
                                ", only F32, F64, F16, BF16, I32, I64, U8 and BOOL (" + cast +
                                "other tensors of the file by load_safetensors_tensor); in '" +
                                path + "'";
    if (cast.empty()) {
      CHECK_THROWS_WITH_AS(load_safetensors(path, kCPU, IntegerCast::widen), message.c_str(),
                           NotImplemented);
    }
    CHECK_THROWS_WITH_AS(load_safetensors(path), message.c_str(), NotImplemented);
    const SafetensorsHeader header = load_safetensors_header(path);
    const auto read = [&](size_t at) {
      return load_safetensors_tensor(path, header, header.entries[at]);
    };
    CHECK_THROWS_WITH_AS(read(0), message.c_str(), NotImplemented);
    CHECK(read(1).shape() == Shape{3});
    SafetensorsEntry longer = header.entries[1];
    longer.shape = {1 << 20};
    CHECK_THROWS_AS(load_safetensors_tensor(path, header, longer), IoError);
  }
  write_bytes(folder.file("x"),
              file_of("{" + entry("x", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1));
  CHECK_THROWS_WITH_AS(
      load_safetensors(folder.file("x")),
      ("load_safetensors: 'x' has 9 axes, and sash has at most 8; in '" + folder.file("x") + "'")
          .c_str(),
      NotImplemented);
}

TEST_CASE("safetensors: integers that are widened on demand") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  struct Widened {
    std::string dtype, bytes;
    DType becomes;
    std::vector<int64_t> values;
  };
  const Widened all[] = {
      {"I8", {'\x80', '\x7f', '\xff'}, DType::int32, {-128, 127, -1}},
      {"I16", {'\0', '\x80', '\xff', '\x7f', '\xfe', '\xff'}, DType::int32, {-32768, 32767, -2}},
      {"U16", {'\0', '\x80', '\xff', '\xff', '\1', '\0'}, DType::int32, {32768, 65535, 1}},
      {"U32",
       {'\0', '\0', '\0', '\x80', '\xff', '\xff', '\xff', '\xff', '\2', '\0', '\0', '\0'},
       DType::int64,
       {2147483648, 4294967295, 2}}};
  for (const auto& [name, bytes, becomes, values] : all) {
    const std::string dtype = name;
    CAPTURE(dtype);
    const std::string offsets = "[0," + std::to_string(bytes.size()) + "]";
    write_bytes(path, file_of("{" + entry("x", dtype, "[3,1]", offsets) + "}") + bytes);
    const SafetensorsFile file = load_safetensors(path, kCPU, IntegerCast::widen);
    CHECK(file.tensors[0].second.dtype() == becomes);
    CHECK(file.tensors[0].second.shape() == Shape{3, 1});
    CHECK(file.tensors[0].second.to_vector<int64_t>() == values);
    const SafetensorsHeader header = load_safetensors_header(path);
    CHECK(load_safetensors_tensor(path, header, header.entries[0], kCPU, IntegerCast::widen)
              .to_vector<int64_t>() == values);
  }
}

TEST_CASE("safetensors: files that cannot be opened or read") {
  const TemporaryFolder folder;
  const std::string absent = folder.file("absent");
  CHECK_THROWS_WITH_AS(
      load_safetensors(absent),
      ("load_safetensors: cannot open '" + absent + "': No such file or directory").c_str(),
      IoError);
  CHECK_THROWS_WITH_AS(
      load_safetensors(folder.file("")),
      ("load_safetensors: cannot read '" + folder.file("") + "': Is a directory").c_str(), IoError);
}

TEST_CASE("safetensors: wrong arguments leave the old file unchanged") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  write_bytes(path, "old");
  const Tensor x = tensor<float>({1, 2});
  const auto refuses = [&](const StateDict& dict,
                           const std::map<std::string, std::string>& metadata,
                           const char* message) {
    CHECK_THROWS_WITH_AS(save_safetensors(path, dict, metadata), message, ValueError);
    CHECK(read_bytes(path) == "old");
    CHECK(folder.count() == 1);
  };
  refuses({{"a", x}, {"a", x}}, {}, "save_safetensors: expected distinct names, got 'a' twice");
  refuses({{"a", Tensor()}}, {}, "save_safetensors: expected defined tensors, got 'a' undefined");
  refuses({{"__metadata__", x}}, {},
          "save_safetensors: expected a name that is not reserved, got '__metadata__'");
  const char* utf8 = "save_safetensors: expected UTF-8 names and metadata, got bytes that are not";
  refuses({{"\xff", x}}, {}, utf8);
  refuses({{"a", x}}, {{"k", "\xc3"}}, utf8);
}

TEST_CASE("safetensors: a write that fails half-way leaves the old file unchanged") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  save_safetensors(path, {{"a", tensor<float>({1, 2})}});
  const std::string old = read_bytes(path);

  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    save_safetensors(path, {{"a", zeros({4000})}});
  } catch (const IoError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);

  CHECK(message.find("save_safetensors: cannot write '") == 0);
  CHECK(message.find("File too large") != std::string::npos);
  CHECK(read_bytes(path) == old);
  CHECK(folder.count() == 1);
}

TEST_CASE("safetensors: paths that cannot be written") {
  const TemporaryFolder folder;
  const StateDict dict{{"a", tensor<float>({1})}};
  CHECK_THROWS_WITH_AS(save_safetensors(folder.file("none/x"), dict),
                       doctest::Contains("No such file or directory"), IoError);
  std::filesystem::create_directory(folder.file("taken"));
  CHECK_THROWS_WITH_AS(save_safetensors(folder.file("taken"), dict),
                       doctest::Contains("cannot replace"), IoError);
  CHECK(folder.count() == 1);
}

TEST_CASE("safetensors: files written by the reference implementation") {
  const SafetensorsFile lm = load_safetensors(SASH_TEST_PARITY "/causal_lm.safetensors");
  CHECK(lm.tensors.size() == 93);
  CHECK(lm.metadata.at("config").find("\"vocab\": 29") != std::string::npos);
  const Tensor* tokens = find(lm.tensors, "batch.tokens");
  REQUIRE(tokens);
  CHECK(tokens->dtype() == DType::int64);
  CHECK(tokens->shape() == Shape{3, 13});
  for (const int64_t token : tokens->to_vector<int64_t>()) CHECK((token >= 0 && token < 29));
  CHECK(find(lm.tensors, "loss")->item<double>() == doctest::Approx(3.5934).epsilon(1e-4));

  const StateDict encoder = load_safetensors(SASH_TEST_PARITY "/encoder.safetensors").tensors;
  const Tensor* padding = find(encoder, "batch.padding");
  REQUIRE(padding);
  CHECK(padding->dtype() == DType::boolean);
  const std::vector<bool> padded = padding->to_vector<bool>();
  CHECK(std::count(padded.begin(), padded.end(), true) == 44 - (11 + 7 + 2 + 9));
}
