// Errors about untrusted text are typed and short.
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <sash/core/quote.h>
#include <sash/sash.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

void write_safetensors(const std::string& path, const std::string& header) {
  const uint64_t length = header.size();
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header;
}

}  // namespace

TEST_CASE("quoted text is short, printable and whole UTF-8") {
  CHECK(in_quotes("abc") == "'abc'");
  CHECK(in_quotes(std::string(60, 'x')) == "'" + std::string(60, 'x') + "'");
  CHECK(in_quotes(std::string(61, 'x')) == "'" + std::string(60, 'x') + "...'");
  CHECK(excerpt("a\nb\tc\x1b[0m") == "a?b?c?[0m");
  CHECK(excerpt(std::string("a\0b", 3)) == "a?b");
  CHECK(excerpt("a\xc3\xa4\xc3\xb6", 3) == "a\xc3\xa4...");
  CHECK(excerpt("a\xc3\xa4\xc3\xb6", 4) == "a\xc3\xa4...");
  CHECK(excerpt("a\xc3\xa4\xc3\xb6", 5) == "a\xc3\xa4\xc3\xb6");
  CHECK(excerpt("\x80\x80\x80", 2) == "??...");
  CHECK(excerpt("\x93NUMPY \xc3(\xe2\x82") == "?NUMPY ?(??");
}

TEST_CASE("errors quote the beginning of a long text") {
  const std::string text(100000, 'x'), cut = "'" + text.substr(0, 60) + "...'";
  expect_errors({
      {"DeviceError: Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got " + cut,
       [&] { Device::parse(text); }},
      {"ValueError: parse_dtype: expected one of float32, float64, float16, bfloat16, int32, "
       "int64, uint8, bool, got " +
           cut,
       [&] { parse_dtype(text); }},
  });
  nn::Linear model(2, 2);
  StateDict state = model.state_dict();
  for (int i = 0; i < 1000; ++i) state.emplace_back(std::to_string(i) + text, ones({1}));
  const std::string error = thrown_by([&] { model.load_state_dict(state); });
  CHECK(error.starts_with("ValueError: "));
  CHECK(error.size() < 6000);
  CHECK(error.ends_with(" and 980 more"));
}

TEST_CASE("errors about deep or long safetensors headers are short") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  const auto refuses = [&](const std::string& header, const std::string& expected) {
    std::filesystem::remove(path);
    write_safetensors(path, header);
    expect_error<FormatError>("load_safetensors: expected " + expected + "; in '" + path + "'",
                              [&] { load_safetensors(path); });
  };
  for (const size_t depth : std::vector<size_t>{9, 1000, 100'000, 1'000'000}) {
    const std::string lists = std::string(depth, '[') + std::string(depth, ']');
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += "{\"x\":";
    objects += "0" + std::string(depth, '}');
    const std::string expected = "a header nested at most 8 deep, got a deeper one";
    refuses("{\"x\":" + lists + "}", expected);
    refuses("{\"x\":{\"dtype\":\"U8\",\"shape\":" + lists + ",\"data_offsets\":[0,1]}}", expected);
    refuses("{\"__metadata__\":" + objects + "}", expected);
    refuses(objects, expected);
  }
  const std::string text(100000, 'n'), cut = text.substr(0, 60) + "...";
  refuses("{\"" + text + "\":{\"dtype\":\"" + text + "\",\"shape\":[],\"data_offsets\":[0,1]}}",
          "a known dtype for '" + cut + "', got '" + cut + "'");
  refuses("{\"" + text + "\":3,\"" + text + "\":3}", "distinct keys, got '" + cut + "' twice");
  refuses("{\"__metadata__\":\"" + text + "\"}",
          "strings in __metadata__, got \"" + text.substr(0, 59) + "...");
  std::filesystem::remove(path);
  write_safetensors(path, "{\"" + text + "\":" + text + "}");
  const std::string error = thrown_by([&] { load_safetensors(path); });
  CHECK(error.starts_with("FormatError: "));
  CHECK(error.size() < 300);
}
