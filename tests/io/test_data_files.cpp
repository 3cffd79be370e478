// Files of data: NumPy arrays, tables and token ids.
#include <doctest/doctest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include <sash/core/error.h>
#include <sash/nn/data/csv.h>
#include <sash/nn/data/json_lines.h>
#include <sash/nn/data/npy.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/tensor/factories.h>

#include "../support/child_process.h"
#include "../support/compare.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Ids = std::vector<int64_t>;

const TensorOptions kHost{.device = kCPU};

void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A file of numpy.save: its header and elements.
std::string npy(const std::string& header, std::string_view elements) {
  std::string text("\x93NUMPY\x01", 7);
  text += '\0';
  text += static_cast<char>(header.size() & 0xFF);
  text += static_cast<char>(header.size() >> 8);
  return text + header + std::string(elements);
}

}  // namespace

TEST_CASE("npy: every dtype comes back") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.npy");
  const Tensor x = randn({3, 4, 2}, kHost) * 50;
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::int32,
                            DType::int64, DType::boolean}) {
    for (const Tensor& y : {x.to(dtype), x.to(dtype).transpose(0, 2), x.to(dtype)[1][2][0],
                            x.to(dtype).narrow(1, 0, 0)}) {
      nn::data::save_npy(path, y);
      CHECK(all_same(nn::data::load_npy(path, kCPU), y));
    }
  }
  expect_error<DTypeError>("save_npy: expected a dtype that NumPy has, got bfloat16",
                           [&] { nn::data::save_npy(path, x.to(DType::bfloat16)); });
  CHECK(folder.count() == 1);
}

TEST_CASE("npy: what others write") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.npy");
  const std::string_view six("\x01\x00\x02\x00\x03\x00\xFF\xFF\x05\x00\x06\x00", 12);
  write(path, npy("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }", six));
  CHECK(nn::data::load_npy(path, kCPU).to_vector<int64_t>() == Ids{1, 2, 3, -1, 5, 6});
  CHECK(nn::data::load_npy(path, kCPU).dtype() == DType::int32);
  write(path, npy("{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }\n", six));
  CHECK(nn::data::load_npy(path, kCPU).to_vector<int64_t>() == Ids{1, 3, 5, 2, 65535, 6});
  write(path, npy("{\"descr\": 3}", six));
  CHECK_THROWS_AS(nn::data::load_npy(path, kCPU), FormatError);
  write(path, npy("{'shape': (6,), 'fortran_order': False, 'descr': '>i2'}", six));
  CHECK(nn::data::load_npy(path, kCPU).to_vector<int64_t>() == Ids{256, 512, 768, -1, 1280, 1536});
  write(path, npy("{'shape': (), 'fortran_order': False, 'descr': '>f4'}", {"\x3F\x80\0\0", 4}));
  CHECK(nn::data::load_npy(path, kCPU).item<double>() == 1);
  CHECK(nn::data::load_npy(path, kCPU).rank() == 0);
}

TEST_CASE("npy: any damage is an error that names the file") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.npy");
  nn::data::save_npy(path, arange(0, 10, 1, kHost));
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  for (size_t size = 0; size < good.size(); ++size) {
    write(path, good.substr(0, size));
    const std::string thrown = thrown_by([&] { nn::data::load_npy(path, kCPU); });
    CHECK(thrown.starts_with("FormatError: load_npy: expected "));
    CHECK(thrown.ends_with(path + "'"));
    CHECK_NOTHROW(nlohmann::json(thrown).dump());  // throws for what is no UTF-8
  }
  for (size_t at = 0; at < 128; ++at) {
    for (const char c : {'\0', '\xFF', '(', '9', '\''}) {
      std::string bad = good;
      bad[at] = c;
      write(path, bad);
      try {
        nn::data::load_npy(path, kCPU);
      } catch (const Error&) {
      }
    }
  }
  const auto thrown = [&](const std::string& header) {
    write(path, npy(header, "12345678"));
    const std::string text = thrown_by([&] { nn::data::load_npy(path, kCPU); });
    return text.substr(0, text.find(';'));
  };
  CHECK(thrown("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}") ==
        "NotImplemented: load_npy: expected elements of type b1, i1 to i8, u1 to u4 or f2 to f8, "
        "got '<c8'");
  CHECK(thrown("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}") ==
        "FormatError: load_npy: expected 16 bytes of elements, as the header says, got 8");
  CHECK(thrown("{'descr': '<f8', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}") ==
        "NotImplemented: load_npy: expected at most 8 axes, got 9");
  CHECK(thrown("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}") ==
        "FormatError: load_npy: expected fewer than 2^64 bytes in an npy file, got '<f8'");
  CHECK(thrown("{'descr': '<f8', 'shape': (1,)}") ==
        "FormatError: load_npy: expected the keys descr, fortran_order and shape in an npy file, "
        "got '{'descr': '<f8', 'shape': (1,)}'");
  CHECK(thrown("{'descr': '<f8', 'shape': (1,), 'shape': (1,)}") ==
        "FormatError: load_npy: expected each key once in an npy file, "
        "got '{'descr': '<f8', 'shape': (1,), 'shape': (1,)}'");
  CHECK(thrown("{'descr': [('a', '<i4'), ('b', '<f4')], 'fortran_order': False, 'shape': (1,)}") ==
        "NotImplemented: load_npy: expected elements of type b1, i1 to i8, u1 to u4 or f2 to f8, "
        "got a structure");
}

TEST_CASE("npy: NumPy reads what is written, and the other way round") {
  const TemporaryFolder folder;
  const std::string ours = folder.file("ours.npy"), theirs = folder.file("theirs.npy");
  nn::data::save_npy(ours, arange(0, 24, 1, kHost).view({2, 3, 4}).to(DType::float32));
  const std::string script = "import numpy as n; x = n.load('" + ours +
                             "'); assert x.dtype == 'f4' and x.shape == (2, 3, 4); n.save('" +
                             theirs + "', n.asfortranarray(x.transpose(1, 0, 2) * 2))";
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) {
    MESSAGE("skipped: this machine's Python has no NumPy");
    return;
  }
  REQUIRE(std::system(("python3 -c \"" + script + "\"").c_str()) == 0);
  const Tensor expected = arange(0, 24, 1, kHost).view({2, 3, 4}).to(DType::float32) * 2;
  CHECK(all_same(nn::data::load_npy(theirs, kCPU), expected.transpose(0, 1).contiguous()));
}

TEST_CASE("csv: tables of numbers") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.csv");
  write(path, "\xEF\xBB\xBFx, \"y, z\" ,w\r\n1,2.5,-3e2\r\n\r\n\"4\", +5 ,nan");
  const nn::data::CsvTable table = nn::data::read_csv(path, {.dtype = DType::float64});
  CHECK(table.columns == std::vector<std::string>{"x", "y, z", "w"});
  CHECK(table.values.shape() == Shape{2, 3});
  CHECK(std::isnan(table.values[1][2].item<double>()));
  CHECK(table.values[0].to_vector<double>() == std::vector<double>{1, 2.5, -300});
  write(path, "1;2\n3;4\n");
  const Tensor plain =
      nn::data::read_csv(path, {.delimiter = ';', .header = false, .dtype = DType::int64}).values;
  CHECK(plain.to_vector<int64_t>() == Ids{1, 2, 3, 4});
  write(path, "a,b\r1,2\r\r3,4\r");
  const nn::data::CsvTable classic = nn::data::read_csv(path, {.dtype = DType::int64});
  CHECK(classic.columns == std::vector<std::string>{"a", "b"});
  CHECK(classic.values.to_vector<int64_t>() == Ids{1, 2, 3, 4});
  write(path, "");
  CHECK(nn::data::read_csv(path).values.shape() == Shape{0, 0});
  const auto thrown = [&](std::string_view text) {
    write(path, text);
    return thrown_by([&] { nn::data::read_csv(path); });
  };
  const std::string place = " of '" + path + "'";
  CHECK(thrown("a,b\n1,2\n3\n") ==
        "FormatError: read_csv: expected 2 fields, got 1 in line 3" + place);
  CHECK(thrown("a,b\r\n1,2\r\n\r\n3\r\n") ==
        "FormatError: read_csv: expected 2 fields, got 1 in line 4" + place);
  CHECK(thrown("a,b\n1,\n") ==
        "FormatError: read_csv: expected a number, got '' in line 2" + place);
  CHECK(thrown("a\n1e999\n") ==
        "FormatError: read_csv: expected a number, got '1e999' in line 2" + place);
  CHECK_THROWS_AS(nn::data::read_csv(folder.file("none")), IoError);
}

TEST_CASE("csv: quotes as in RFC 4180") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.csv");
  const auto columns = [&](std::string_view text, char delimiter = ',') {
    write(path, text);
    return nn::data::read_csv(path, {.delimiter = delimiter}).columns;
  };
  using Names = std::vector<std::string>;
  CHECK(columns("a,\"c \"\"d\"\"\"\r\n1,2\r\n") == Names{"a", "c \"d\""});
  CHECK(columns("\"\"\"\",\"\"\n1,2") == Names{"\"", ""});
  CHECK(columns("\"a\r\nb\",\"c,\nd\"\n1,2\n") == Names{"a\r\nb", "c,\nd"});
  CHECK(columns("\xEF\xBB\xBF\"a, \"\"b\"\"\" , c ,\n1,2,3\n") == Names{"a, \"b\"", "c", ""});
  CHECK(columns("\" a \",5\" pipe\n1,2\n") == Names{" a ", "5\" pipe"});
  CHECK(columns("\"a b\" \"c\"\n1 2\n", ' ') == Names{"a b", "c"});
  CHECK(columns("\"a\tb\"\tc\n1\t2\n", '\t') == Names{"a\tb", "c"});
  write(path, "\"a\nb\",c\n\"1\",\"2\"\n\n3,4\n");
  CHECK(nn::data::read_csv(path, {.dtype = DType::int64}).values.to_vector<int64_t>() ==
        Ids{1, 2, 3, 4});
  const auto thrown = [&](std::string_view text) {
    write(path, text);
    return thrown_by([&] { nn::data::read_csv(path); });
  };
  const std::string place = " of '" + path + "'";
  CHECK(thrown("\"a\nb\",c\n1,2\n3\n") ==
        "FormatError: read_csv: expected 2 fields, got 1 in line 4" + place);
  CHECK(thrown("a\n1\n\"2\n3\n") ==
        "FormatError: read_csv: expected an end of the quotes, got none in line 3" + place);
  CHECK(thrown("a\n\"1\"2\n") ==
        "FormatError: read_csv: expected a delimiter after the closing quotes, got none in line 2" +
            place);
  CHECK(thrown("a,b\n1,\"\"\n") ==
        "FormatError: read_csv: expected a number, got '' in line 2" + place);
}

TEST_CASE("csv: columns of text") {
  using Texts = std::vector<std::string>;
  const TemporaryFolder folder;
  const std::string path = folder.file("t.csv");
  write(path,
        "label,\"the text\",x,title\n1, good one ,2.5,\"a, \"\"b\"\"\n\"\n0,\"\",3,caf\xc3\xa9\n");
  const nn::data::CsvTable table = nn::data::read_csv(path, {.text = {"title", "the text"}});
  CHECK(table.columns == Texts{"label", "x"});
  CHECK(table.values.to_vector<double>() == std::vector<double>{1, 2.5, 0, 3});
  CHECK(table.values.shape() == Shape{2, 2});
  CHECK(table.text.size() == 2);
  CHECK(table.text.at("the text") == Texts{"good one", ""});
  CHECK(table.text.at("title") == Texts{"a, \"b\"\n", "caf\xc3\xa9"});
  expect_error<ValueError>(
      "read_csv: expected columns of text among 'label', 'the text', 'x', 'title', got 'name'",
      [&] { nn::data::read_csv(path, {.text = {"name"}}); });
  write(path, "a,a,b,b\n1,2,x,y\n");
  expect_error<ValueError>("read_csv: expected one column named 'b', got two",
                           [&] { nn::data::read_csv(path, {.text = {"b"}}); });
  write(path, "a\tb\n\nc\td\n");
  const nn::data::CsvTable plain =
      nn::data::read_csv(path, {.delimiter = '\t', .header = false, .text = {"0", "1"}});
  CHECK(plain.columns.empty());
  CHECK(plain.values.shape() == Shape{2, 0});
  CHECK(plain.text.at("1") == Texts{"b", "d"});
  expect_error<FormatError>(
      "read_csv: expected a number, got 'b' in line 1 of '" + path + "'",
      [&] { nn::data::read_csv(path, {.delimiter = '\t', .header = false, .text = {"0"}}); });
}

TEST_CASE("json lines: numbers, text and lists of integers") {
  using nn::data::read_json_lines;
  const TemporaryFolder folder;
  const std::string path = folder.file("t.jsonl");
  write(path,
        "{\"text\": \"caf\\u00e9\\n\", \"label\": 3, \"good\": true, \"ids\": [1, 2, -3], "
        "\"chat\": [{\"says\": \"hi\"}]}\r\n"
        "  \n"
        "{\"good\": 0, \"chat\": [{\"says\": \"ho\"}], \"other\": null, \"ids\": [], "
        "\"label\": -2.5, \"text\": \"\"}");
  const auto table = read_json_lines(
      path, {.numbers = {"label", "good"}, .text = {"text", "/chat/0/says"}, .lists = {"ids"}});
  CHECK(table.values.dtype() == default_dtype());
  CHECK(table.values.shape() == Shape{2, 2});
  CHECK(table.values.to_vector<double>() == std::vector<double>{3, 1, -2.5, 0});
  CHECK(table.text.at("text") == std::vector<std::string>{"caf\xc3\xa9\n", ""});
  CHECK(table.text.at("/chat/0/says") == std::vector<std::string>{"hi", "ho"});
  CHECK(table.lists.at("ids") == std::vector<Ids>{{1, 2, -3}, {}});
  write(path, "{\"n\":9007199254740993}\n{\"n\":-9223372036854775808}\n{\"n\":false}\n");
  CHECK(read_json_lines(path, {.numbers = {"n"}, .dtype = DType::int64})
            .values.to_vector<int64_t>() == Ids{9007199254740993, INT64_MIN, 0});
  write(path, "");
  CHECK(read_json_lines(path, {.numbers = {"n"}, .text = {"t"}}).values.shape() == Shape{0, 1});
  CHECK(read_json_lines(path, {.text = {"t"}}).text.at("t").empty());
}

TEST_CASE("json lines: what is wrong, and in which line") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.jsonl"), deep(1'000'000, '[');
  const auto thrown = [&](const std::string& line, const nn::data::JsonLinesOptions& options) {
    write(path, "{\"n\":1,\"t\":\"\",\"l\":[]}\n\n" + line + "\n");
    const std::string text = thrown_by([&] { nn::data::read_json_lines(path, options); });
    const std::string place = " in line 3 of '" + path + "'";
    CHECK(text.ends_with(place));
    return text.substr(0, text.size() - place.size());
  };
  const std::string op = "FormatError: read_json_lines: expected ";
  CHECK(thrown("{\"n\":1", {}) == op + "a JSON object, got '{\"n\":1'");
  CHECK(thrown("[1]", {}) == op + "a JSON object, got array");
  CHECK(thrown(std::string("{}\0{\"n\":1}", 10), {}) == op + "a JSON object, got a byte of 0");
  CHECK(thrown("{\"t\":\"\xff\"}", {}) == op + "a JSON object, got '{\"t\":\"?\"}'");
  CHECK(thrown("{\"x\":1}", {.numbers = {"n"}}) == op + "a number 'n', got none");
  CHECK(thrown("{\"n\":\"1\"}", {.numbers = {"n"}}) == op + "a number 'n', got \"1\"");
  CHECK(thrown("{\"n\":null}", {.numbers = {"n"}}) == op + "a number 'n', got null");
  CHECK(thrown("{\"n\":1.0}", {.numbers = {"n"}, .dtype = DType::int64}) ==
        op + "a whole number of int64 'n', got 1.0");
  CHECK(thrown("{\"n\":256}", {.numbers = {"n"}, .dtype = DType::uint8}) ==
        op + "a whole number of uint8 'n', got 256");
  CHECK(thrown("{\"n\":9223372036854775808}", {.numbers = {"n"}, .dtype = DType::int64}) ==
        op + "a whole number of int64 'n', got 9223372036854775808");
  CHECK(thrown("{\"n\":2}", {.numbers = {"n"}, .dtype = DType::boolean}) ==
        op + "0 or 1 'n', got 2");
  CHECK(thrown("{\"t\":3}", {.text = {"t"}}) == op + "a string 't', got number");
  CHECK(thrown("{\"l\":3}", {.lists = {"l"}}) == op + "a list of integers 'l', got number");
  CHECK(thrown("{\"l\":[1,2.5]}", {.lists = {"l"}}) == op + "a list of integers 'l', got 2.5");
  const std::string nested = "{\"n\":" + deep + std::string(deep.size(), ']') + "}";
  CHECK(thrown(nested, {.numbers = {"n"}}) == op + "a number 'n', got array");
  CHECK(thrown(deep, {}) == op + "a JSON object, got '" + deep.substr(0, 60) + "...'");
  CHECK_THROWS_AS(nn::data::read_json_lines(path, {.text = {"/a~2"}}), ValueError);
  CHECK_THROWS_AS(nn::data::read_json_lines(folder.file("none"), {}), IoError);
}

TEST_CASE("csv: integers are exact, and what a dtype cannot hold is an error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.csv");
  const auto read = [&](std::string_view text, DType dtype) {
    write(path, text);
    return nn::data::read_csv(path, {.header = false, .dtype = dtype}).values;
  };
  CHECK(read("9007199254740993\n-9223372036854775808\n+7", DType::int64).to_vector<int64_t>() ==
        Ids{9007199254740993, INT64_MIN, 7});
  CHECK(read("1,0\n0,1", DType::boolean).to_vector<int64_t>() == Ids{1, 0, 0, 1});
  CHECK(read("255", DType::uint8).item<int64_t>() == 255);
  CHECK(read("1e-400,-1e-400,5e-324", DType::float64).to_vector<double>() ==
        std::vector<double>{0, 0, 5e-324});
  struct Row {
    std::string text;
    DType dtype;
    std::string expected;
  };
  for (const auto& [text, dtype, expected] : {
           Row{"1.7", DType::int64, "a whole number of int64"},
           Row{"1e3", DType::int32, "a whole number of int32"},
           Row{"nan", DType::int32, "a whole number of int32"},
           Row{"9223372036854775808", DType::int64, "a whole number of int64"},
           Row{"2147483648", DType::int32, "a whole number of int32"},
           Row{"-1", DType::uint8, "a whole number of uint8"},
           Row{"2", DType::boolean, "0 or 1"},
           Row{"true", DType::boolean, "0 or 1"},
           Row{"+-5", DType::int64, "a whole number of int64"},
           Row{"+-5", DType::float32, "a number"},
           Row{"+", DType::float32, "a number"},
           Row{"-1e400", DType::float64, "a number"},
       }) {
    expect_error<FormatError>(
        "read_csv: expected " + expected + ", got '" + text + "' in line 1 of '" + path + "'",
        [&, &text = text, &dtype = dtype] { read(text, dtype); });
  }
}

TEST_CASE("token files: ids come back, and wrong sizes are errors") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  Ids ids;
  for (int64_t i = 0; i < 5000; ++i) ids.push_back(i * 13 % 65536);
  for (const int bits : {16, 32}) {
    nn::data::save_tokens(path, ids, bits);
    const nn::data::Tokens tokens = nn::data::Tokens::from_file(path, bits);
    REQUIRE(tokens.size() == 5000);
    Ids read(5000);
    tokens.read(0, read);
    CHECK(read == ids);
    const nn::data::Tokens rest = nn::data::Tokens::from_file(path, bits, 10 * bits / 8);
    CHECK(rest.size() == 4990);
    const nn::data::TokenDataset dataset(rest, 100);
    CHECK(dataset.size() == 49);
    CHECK(dataset.get(1)[0].to_vector<int64_t>() == Ids(ids.begin() + 110, ids.begin() + 210));
  }
  write(path, "12345");
  Ids bytes(5);
  nn::data::Tokens::from_file(path, 8).read(0, bytes);
  CHECK(bytes == Ids{'1', '2', '3', '4', '5'});
  expect_errors({
      {"FormatError: Tokens::from_file: expected whole ids of 16 bits in '" + path +
           "', got 5 bytes",
       [&] { nn::data::Tokens::from_file(path, 16); }},
      {"ValueError: Tokens::from_file: expected 8, 16 or 32 bits, got 12",
       [&] { nn::data::Tokens::from_file(path, 12); }},
      {"ValueError: Tokens::from_file: expected a skip in [0, 5], got 6",
       [&] { nn::data::Tokens::from_file(path, 16, 6); }},
      {"ValueError: save_tokens: expected ids of 16 bits, got 65536",
       [&] {
         nn::data::save_tokens(path, Ids{1, 65536}, 16);
       }},
      {"IndexError: Tokens::read: expected ids in [0, 2), got [1, 3)",
       [&] {
         Ids two(2);
         nn::data::Tokens::from_file(path, 16, 1).read(1, two);
       }},
  });
  CHECK_THROWS_AS(nn::data::Tokens::from_file(folder.file("none"), 16), IoError);
}
