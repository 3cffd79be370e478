#include <doctest/doctest.h>
#include <sash/tensor/io/gguf.h>
#include <sash/tensor/io/gguf_value.h>
#include <sash/tensor/io/safetensors.h>

#include <malloc.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "../support/expect_error.h"
#include "../support/gguf_bytes.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

const std::string kBlocks = SASH_TEST_PARITY "/blocks.gguf";

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("gguf: every format is what the package gguf dequantises") {
  const GgufFile file(kBlocks);
  const StateDict expected = load_safetensors(SASH_TEST_PARITY "/blocks.safetensors", kCPU).tensors;
  REQUIRE(file.entries().size() == expected.size());
  for (const auto& [key, want] : expected) {
    const std::string name = key;
    CAPTURE(name);
    const Tensor got = file.tensor(name, {.device = kCPU});
    CHECK(got.shape() == want.shape());
    CHECK(got.to_vector<double>() == want.to_vector<double>());
  }
  CHECK(file.tensor("f16", {.device = kCPU}).dtype() == DType::float16);
  CHECK(file.tensor("bf16", {.device = kCPU}).dtype() == DType::bfloat16);
  CHECK(file.tensor("q4_k", {.device = kCPU}).dtype() == DType::float32);
  CHECK(file.tensor("q4_k", {.dtype = DType::bfloat16, .device = kCPU}).dtype() == DType::bfloat16);
  CHECK(file.tensors({.dtype = DType::float64, .device = kCPU})[0].second.dtype() ==
        DType::float64);
}

TEST_CASE("gguf: metadata of every type") {
  const GgufFile file(kBlocks);
  CHECK(file.get<std::string>("general.architecture") == "test");
  CHECK(file.get<int64_t>("a.uint8") == 200);
  CHECK(file.get<int64_t>("a.int8") == -100);
  CHECK(file.get<int64_t>("a.uint16") == 60000);
  CHECK(file.get<int64_t>("a.int16") == -30000);
  CHECK(file.get<int64_t>("a.uint32") == 4000000000);
  CHECK(file.get<int64_t>("a.int32") == -2000000000);
  CHECK(file.get<double>("a.float32") == 0.25);
  CHECK(file.get<bool>("a.bool"));
  CHECK(file.get<std::string>("a.string") == "caf\xc3\xa9");
  CHECK(file.get<uint64_t>("a.uint64") == (uint64_t{1} << 63) + 5);
  CHECK(file.get<int64_t>("a.int64") == -(int64_t{1} << 62));
  CHECK(file.get<double>("a.float64") == 0.1);
  CHECK(file.get<double>("a.int8") == -100.0);
  CHECK(file.get<int64_t>("absent", 7) == 7);
  const auto words = file.get<std::vector<GgufValue>>("a.array");
  REQUIRE(words.size() == 3);
  CHECK(std::get<std::string>(words[2]) == "yz");
  CHECK(std::get<int64_t>(file.get<std::vector<GgufValue>>("a.numbers")[2]) == -3);
  const auto& numbers = std::get<GgufNumbers>(file.metadata().at("a.numbers"));
  REQUIRE(numbers.size() == file.get<std::vector<GgufValue>>("a.numbers").size());
  CHECK(std::get<int64_t>(numbers[2]) == -3);
  CHECK(file.list<int64_t>("a.numbers")[2] == -3);
  CHECK(file.list<std::string>("a.array")[2] == "yz");
  const std::string place = "; in '" + kBlocks + "'";
  expect_errors({
      {"ValueError: GgufFile: expected 'a.numbers' to hold a float in each place, got an integer" +
           place,
       [&] { file.list<double>("a.numbers"); }},
      {"ValueError: GgufFile: expected an array for 'a.int8', got an integer" + place,
       [&] { file.list<int64_t>("a.int8"); }},
      {"ValueError: GgufFile: expected a metadatum 'absent', got none" + place,
       [&] { file.get<int64_t>("absent"); }},
      {"ValueError: GgufFile: expected an integer for 'a.string', got a string" + place,
       [&] { file.get<int64_t>("a.string"); }},
      {"ValueError: GgufFile: expected an integer for 'a.uint64', got an integer" + place,
       [&] { file.get<int64_t>("a.uint64"); }},
      {"ValueError: GgufFile: expected a tensor 'absent', got none in '" + kBlocks + "'",
       [&] { file.tensor("absent"); }},
  });
}

TEST_CASE("gguf: a file cut off anywhere is a FormatError") {
  const std::string whole = read_bytes(kBlocks);
  REQUIRE(whole.size() == 5760);
  const size_t end = 5744;  // padding follows
  for (size_t length = 0; length < end; length += length < 1200 ? 1 : 97) {
    CAPTURE(length);
    CHECK(gguf_error(whole.substr(0, length)).starts_with("FormatError: GgufFile: "));
  }
  CHECK(gguf_error(whole.substr(0, 3)) ==
        "FormatError: GgufFile: expected a file that begins with 'GGUF', got another");
  CHECK(gguf_error(whole.substr(0, 5400)).find("bytes of 'q6_k', got only ") != std::string::npos);
}

TEST_CASE("gguf: damaged bytes are an error or other values, never worse") {
  const std::string whole = read_bytes(kBlocks);
  for (size_t at = 0; at < 1600; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    const std::string error = gguf_error(damaged);
    CHECK((error == "nothing was thrown" || error.starts_with("FormatError: GgufFile: ") ||
           error.starts_with("NotImplemented: GgufFile: ")));
  }
}

TEST_CASE("gguf: arrays of each number, and of bools") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  GgufBytes bytes;
  const auto array = [&](const std::string& key, uint32_t type, auto... values) -> GgufBytes& {
    bytes.name(key).add(uint32_t{9}).add(type).add(uint64_t{sizeof...(values)});
    (bytes.add(values), ...);
    return bytes;
  };
  bytes.start(0, 6);
  array("u8", 0, uint8_t{0}, uint8_t{255});
  array("i16", 3, int16_t{-2});
  array("f32", 6, 0.5f, -1.5f);
  array("b", 7, uint8_t{1}, uint8_t{0});
  array("u64", 10, UINT64_MAX);
  array("none", 5);
  std::ofstream(path, std::ios::binary) << bytes.text;
  const GgufFile file(path);
  CHECK(file.list<int64_t>("u8") == std::vector<int64_t>{0, 255});
  CHECK(file.list<int64_t>("i16") == std::vector<int64_t>{-2});
  CHECK(file.list<double>("f32") == std::vector<double>{0.5, -1.5});
  CHECK(file.list<bool>("b") == std::vector<bool>{true, false});
  CHECK(file.list<uint64_t>("u64") == std::vector<uint64_t>{UINT64_MAX});
  CHECK(file.list<double>("none").empty());

  bytes = GgufBytes();
  bytes.start(0, 1);
  CHECK(gguf_error(array("b", 7, uint8_t{1}, uint8_t{2}).text) ==
        "FormatError: GgufFile: expected a bool of 0 or 1 for metadatum 'b', got 2");
  bytes = GgufBytes();
  bytes.start(0, 1).name("k").add(uint32_t{9}).add(uint32_t{11}).add(uint64_t{1} << 61).pad(64);
  CHECK(gguf_error(bytes.text)
            .starts_with("FormatError: GgufFile: expected 2305843009213693952 elements of "
                         "metadatum 'k', got only "));
}

TEST_CASE("gguf: an array of bytes takes about as much memory as in the file") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  constexpr size_t kBytes = 8 << 20;
  GgufBytes bytes;
  bytes.start(0, 1).name("k").add(uint32_t{9}).add(uint32_t{0}).add(uint64_t{kBytes});
  bytes.text.append(kBytes, 'x');
  std::ofstream(path, std::ios::binary) << bytes.text;
  const auto used = [] {  // 0 where a sanitizer allocates
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = used();
  const GgufFile file(path);
  CHECK(used() < before + 2 * kBytes);
  CHECK(std::get<int64_t>(file.get<GgufNumbers>("k")[kBytes - 1]) == 'x');
}

TEST_CASE("gguf: a file that is made shorter is an IoError") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  for (const uint32_t format : {0u, 8u}) {  // F32, Q8_0
    const uint64_t extent = 1 << 20;
    GgufBytes bytes;
    bytes.start(1, 0)
        .entry("w", {extent}, format, 0)
        .pad(format == 0 ? 4 * extent : extent / 32 * 34);
    std::ofstream(path, std::ios::binary) << bytes.text;
    const GgufFile file(path);
    std::filesystem::resize_file(path, 4096);
    expect_error<IoError>("GgufFile: '" + path + "' became shorter while it was read",
                          [&] { file.tensor("w", {.device = kCPU}); });
  }
}

TEST_CASE("gguf: a header that changes while it is read is read or an error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  GgufBytes bytes;
  bytes.start(0, 1).name("k").add(uint32_t{9}).add(uint32_t{8}).add(uint64_t{20'000});
  for (int i = 0; i < 20'000; ++i) bytes.name("word");
  std::ofstream(path, std::ios::binary) << bytes.text;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      std::filesystem::resize_file(path, 4096);
      std::filesystem::resize_file(path, bytes.text.size());
    }
  });
  for (int i = 0; i < 100; ++i) {
    const std::string error = thrown_by([&] { GgufFile{path}; });
    CHECK((error == "nothing was thrown" || error.starts_with("IoError: ") ||
           error.starts_with("FormatError: ")));
  }
  done = true;
  writer.join();
}

TEST_CASE("gguf: 100,000 tensors and keys") {
  constexpr uint64_t kCount = 100'000;
  GgufBytes bytes;
  bytes.start(kCount, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    bytes.name("k" + std::to_string(i)).add(uint32_t{0}).add('x');
  }
  for (uint64_t i = 0; i < kCount; ++i) bytes.entry("w" + std::to_string(i), {0}, 0, 0);
  CHECK(gguf_error(bytes.pad().text) == "nothing was thrown");
}
