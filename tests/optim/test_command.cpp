// The command `sash`, from its arguments to what it prints.

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>

#include <sash/nn/data/npy.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/child_process.h"
#include "../support/temporary_folder.h"

namespace fs = std::filesystem;
using sash::testing::ChildProcess;
using sash::testing::file_text;
using sash::testing::is_built;
using sash::testing::program;

namespace {

const std::string kCommand = program("sash");

struct Ended {
  int code;
  std::string out, err;
};

Ended run(std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  arguments.insert(arguments.begin(), kCommand);
  ChildProcess child(arguments, folder.file("log"));
  const int code = child.wait();
  return {code, child.out(), child.err()};
}

/// What the command prints to a terminal.
std::string shown_at(size_t columns, std::vector<std::string> arguments) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string name = ::ptsname(terminal);
  const int held = ::open(name.c_str(), O_RDWR | O_NOCTTY);  // keeps what is printed
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  const TemporaryFolder folder;
  fs::create_symlink(name, folder.file("log.out"));
  arguments.insert(arguments.begin(), kCommand);
  ChildProcess child(arguments, folder.file("log"));
  std::string text, part(4096, '\0');
  std::thread reader([&] {
    while (text.find('\4') == text.npos) {
      const ssize_t count = ::read(terminal, part.data(), part.size());
      if (count <= 0) return;
      text.append(part, 0, static_cast<size_t>(count));
    }
  });
  CHECK(child.wait() == 0);
  CHECK(::write(held, "\4", 1) == 1);  // the end
  reader.join();
  ::close(held);
  ::close(terminal);
  std::erase(text, '\r');
  return text.substr(0, text.find('\4'));
}

void check_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO(text, "\nwithout: ", part);
    const bool found = text.find(part) != std::string::npos;
    CHECK(found);
  }
}

std::string written(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace

TEST_CASE("command: help, version and wrong calls") {
  if (!is_built(kCommand)) return;
  const Ended help = run({"--help"});
  CHECK(help.code == 0);
  check_has(help.out, {"devices", "inspect", "mask", "bench", "train"});
  check_has(run({"--version"}).out, {"sash 0."});
  CHECK(run({}).code == 1);
  CHECK(run({"paint"}).code == 1);
  CHECK(run({"inspect"}).code == 1);
  CHECK(run({"mask"}).code == 1);
}

TEST_CASE("command: more than 10,000 arguments are refused") {
  if (!is_built(kCommand)) return;
  for (const std::string first : {"", "mask", "train"}) {
    CAPTURE(first);
    std::vector<std::string> arguments(first == "train" ? 10002 : 10001);
    arguments[0] = first;
    CHECK(run(arguments).err == "error: expected at most 10000 arguments, got 10001\n");
    arguments.resize(first == "train" ? 10001 : 10000);
    CHECK(run(arguments).err.find("at most") == std::string::npos);
  }
}

TEST_CASE("command: a long flag that is unknown is shortened, and compared with no other") {
  if (!is_built(kCommand)) return;
  for (const std::string command : {"mask", "train"}) {
    CHECK(run({command, "--steps" + std::string(100'000, 'x')}).err ==
          "error: there is no --steps" + std::string(53, 'x') +
              "...\nRun with --help for more information.\n");
    CHECK(
        run({command, "--hepl"}).err ==
        "error: there is no --hepl; did you mean --help?\nRun with --help for more information.\n");
  }
}

TEST_CASE("command: a terminal's width breaks lines between words, and narrows pictures") {
  if (!is_built(kCommand)) return;
  const size_t columns = 36;
  const std::string devices = shown_at(columns, {"devices"});
  check_has(devices, {"\ndefault      "});
  std::istringstream lines(devices);
  size_t broken = 0;
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    const bool continues = line.starts_with(std::string(13, ' '));
    broken += continues;
    // A word that is longer than the line stays whole.
    CHECK((line.size() <= columns || (continues && line.find(' ', 13) == line.npos)));
  }
  CHECK(broken > 0);
  const std::string mask = shown_at(columns, {"mask", "full", "--tokens", "64"});
  check_has(mask, {'\n' + std::string(32, '#') + '\n', "keys a\n         query\n"});
  check_has(run({"mask", "full", "--tokens", "64"}).out, {std::string(64, '#') + '\n'});
}

TEST_CASE("command: output that cannot be written is an error") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder.file("log.out"));
  for (const std::vector<std::string>& call :
       std::vector<std::vector<std::string>>{{"--help"}, {"devices"}, {"train", "--help"}}) {
    std::vector<std::string> command{kCommand};
    command.insert(command.end(), call.begin(), call.end());
    ChildProcess child(command, folder.file("log"));
    CHECK(child.wait() == 1);
    check_has(child.err(), {"error: cannot write to standard output"});
  }
}

TEST_CASE("examples: numbers out of range are refused") {
  if (!is_built(kCommand)) return;
  const std::vector<std::vector<std::string>> calls{{"generate", "absent", "--window", "-3"},
                                                    {"generate", "absent", "--threads", "-5"},
                                                    {"sorting", "--steps", "-1"},
                                                    {"digits", "--seeds", "0"},
                                                    {"listops", "--batch", "0"},
                                                    {"listops", "--tests", "99999999999999999999"},
                                                    {"needle", "--seed", "-1"},
                                                    {"packed", "--tests", "-1"}};
  for (const std::vector<std::string>& call : calls) {
    const TemporaryFolder folder;
    std::vector<std::string> command = call;
    command[0] = program(call[0]);
    ChildProcess child(command, folder.file("log"));
    CHECK(child.wait() == 1);
    check_has(child.err(), {call[call.size() - 2] + ": ", call.back()});
  }
}

TEST_CASE("examples: numbers that are none are refused") {
  if (!is_built(kCommand)) return;
  for (const char* number : {"nan", "inf", "-inf", "1x", ""}) {
    CAPTURE(number);
    check_has(run({"bench", "--seconds", number}).err,
              {"--seconds: expected a finite number, got "});
  }
  const TemporaryFolder folder;
  const std::string digits = program("digits");
  ChildProcess child({digits, "--lr", "nan"}, folder.file("log"));
  CHECK(child.wait() == 1);
  check_has(child.err(), {"--lr: expected a finite number, got nan"});
}

TEST_CASE("example digits: a file without images is named") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  const std::string digits = program("digits");
  const std::string data = folder.file("x");
  sash::save_safetensors(data, {{"a", sash::ones({3}, {.device = sash::kCPU})}});
  ChildProcess child({digits, "--data", data, "--device", "cpu"}, folder.file("log"));
  CHECK(child.wait() == 1);
  check_has(child.err(), {"error: digits: expected a tensor 'images' in " + data + ", got none"});
}

TEST_CASE("command devices: the processor, and cards or why there are none") {
  if (!is_built(kCommand)) return;
  const Ended ended = run({"devices"});
  CHECK(ended.code == 0);
  check_has(ended.out, {"cpu ", " threads", "memory", " available", "cuda", "default"});
}

TEST_CASE("command inspect: safetensors, with dtypes that sash lacks") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  const sash::TensorOptions on{.device = sash::kCPU};
  sash::save_safetensors(
      folder.file("x"),
      {{"fc.weight", sash::ones({300, 40}, on)}, {"fc.bias", sash::ones({300}, on)}},
      {{"made by", "a test"}});
  const Ended ended = run({"inspect", folder.file("x")});
  CHECK(ended.code == 0);
  check_has(ended.out, {"safetensors: 2 tensors, 12,300 elements, 48.0 KiB", "fc.weight", "F32",
                        "[300, 40]", "46.9 KiB", "metadata: 1", "made by", "a test"});
  const std::string header = R"({"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  check_has(run({"inspect", written(folder.file("y"), bytes + header + "ab")}).out,
            {"1 tensors, 2 elements, 2 B", "F8_E4M3"});
}

TEST_CASE("command inspect: a checkpoint, by its parts") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  sash::nn::Linear model(3, 5);
  sash::optim::AdamW optimizer(model.parameters());
  sash::optim::save_checkpoint(folder.file("x"), model, optimizer,
                               {.step = 12, .extra = {{"vocabulary", std::string(500, 'v')}}});
  const Ended ended = run({"inspect", folder.file("x")});
  CHECK(ended.code == 0);
  check_has(ended.out,
            {"checkpoint of sash at step 12", "  model: 2 tensors, 20 elements, 80 B",
             "  optimizer: ", "model.weight", "extra.vocabulary ", "random.seed.cpu ", "vvv..."});
}

TEST_CASE("command inspect: GGUF") {
  if (!is_built(kCommand)) return;
  const Ended ended = run({"inspect", SASH_TEST_PARITY "/blocks.gguf"});
  CHECK(ended.code == 0);
  check_has(ended.out, {"GGUF: ", "Q4_K", "metadata: "});
}

TEST_CASE("command inspect: broken files are named, and said why") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  const std::string x = folder.file("x");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "load_safetensors: expected a file of at least 8 bytes, got 0"},
      {std::string(8, '\0') + "x", "load_safetensors: expected a header that begins with '{'"},
      {"GGUF", "GgufFile"},
      {"PK\x03\x04 archive", "is a zip archive"},
      {"<html></html>", "HTML or XML"}};
  for (const auto& [bytes, message] : cases) {
    const Ended ended = run({"inspect", written(x, bytes)});
    CHECK(ended.code == 1);
    check_has(ended.err, {"error: ", message, x});
    CHECK(ended.out.empty());
  }
  check_has(run({"inspect", folder.file("absent")}).err, {"cannot open", "No such file"});
  check_has(run({"inspect", folder.file("")}).err, {"no file .safetensors, .gguf or .npy in '"});
}

TEST_CASE("command inspect: NumPy arrays, and the files of a folder") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  const sash::Tensor x = sash::ones({300, 40}, {.device = sash::kCPU});
  sash::nn::data::save_npy(folder.file("b.npy"), x);
  sash::nn::data::save_npy(folder.file("c.npy"), x[0]);
  sash::save_safetensors(folder.file("a.safetensors"), {{"x", x}, {"y", x}});
  written(folder.file("notes.txt"), "no weights");
  check_has(run({"inspect", folder.file("b.npy")}).out,
            {"NumPy array: 1 tensors, 12,000 elements, 46.9 KiB", "<f4", "[300, 40]"});
  check_has(run({"inspect", folder.file("c.npy")}).out, {"[40]", "160 B"});
  const Ended ended = run({"inspect", folder.file("")});
  CHECK(ended.code == 0);
  CHECK(ended.out ==
        "a.safetensors: safetensors: 2 tensors, 24,000 elements, 93.8 KiB\n"
        "b.npy: NumPy array: 1 tensors, 12,000 elements, 46.9 KiB\n"
        "c.npy: NumPy array: 1 tensors, 40 elements, 160 B\n");
  check_has(run({"inspect", written(folder.file("d.npy"), "\x93NUMPY")}).err, {"npy", "d.npy"});
}

TEST_CASE("command: a wrong flag names the nearest one, and help has the terminal's width") {
  if (!is_built(kCommand)) return;
  const auto last = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  CHECK(last(run({"train", "--stepz", "5"}).err) ==
        "error: there is no --stepz; did you mean --steps?");
  CHECK(last(run({"train", "--batchsize=5"}).err) ==
        "error: there is no --batchsize; did you mean --batch?");
  CHECK(last(run({"train", "--mask", "full"}).err) == "error: there is no --mask");  // not --save
  CHECK(last(run({"train", "--colour"}).err) == "error: there is no --colour");
  CHECK(last(run({"mask", "causal", "--token", "5"}).err) ==
        "error: there is no --token; did you mean --tokens?");
  CHECK(run({"mask", "causal", "--token", "5"}).code == 1);
  CHECK(last(run({"inspct", "x"}).err) == "error: there is no inspct; did you mean inspect?");
  CHECK(last(run({}).err) == "A subcommand is required");
  const std::string help = run({"train", "--help"}).out;
  std::istringstream lines(help);
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  CHECK(longest <= 80);
  CHECK(longest > 60);
  check_has(help, {"\n                              "});
}

TEST_CASE("command mask: picture, counts and SVG") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  const Ended ended = run({"mask", "causal_window:2 | (sinks:1 & causal)", "--tokens", "4", "--svg",
                           folder.file("x.svg")});
  CHECK(ended.code == 0);
  // Rows of 1, 2, 3 and 3 keys.
  check_has(ended.out, {"4 tokens", "visible  9 of 16 pairs (56.25 %), 2.2 keys a query",
                        "work     1 of 1 blocks", "caches   hold the first and the last 2 tokens\n",
                        "#   \n##  \n### \n# ##\n"});
  check_has(file_text(folder.file("x.svg")), {"<svg", "</svg>"});
  check_has(run({"mask", "causal", "--tokens", "100000"}).out, {"50.0", "100000 tokens"});
  check_has(
      run({"mask", "causal", "--tokens", "16777216"}).out,
      {"visible  140,737,496,743,936 of", "work     34,359,869,440 of 68,719,476,736 blocks"});
  check_has(
      run({"mask", "causal_window:256 | sinks:4"}).out,
      {"caches   hold the first 4 and the last 256 tokens in decoders, which hide later keys; "
       "alone, this mask shows some\n"});
  check_has(run({"mask", "symmetric_window:8"}).out, {"hold the last 9 tokens in decoders"});
  // A dilation for each head.
  check_has(run({"mask", "dilated_window:1,0,1,2", "--tokens", "4"}).out,
            {"4 tokens, 2 heads", "13 of 32 pairs (40.62 %), 1.6 keys a query"});
  const Ended wrong = run({"mask", "windows:3"});
  CHECK(wrong.code == 1);
  check_has(wrong.err, {"error: attention_mask: expected", "windows:3"});
  CHECK(run({"mask", "causal", "--tokens", "0"}).code == 1);
  check_has(run({"mask", "causal", "--svg", ""}).err, {"--svg: expected the path of a file, got"});
}

TEST_CASE("command bench: a row for each measurement") {
  if (!is_built(kCommand)) return;
  const Ended ended = run({"bench", "--seconds", "0"});
  CHECK(ended.code == 0);
  check_has(ended.out, {"peak in float32", "product 1024", "bfloat16", "attention [1, 4, 1024, 64]",
                        "training step", "causal_window:128", "tokens/s"});
  const Ended wrong = run({"bench", "--device", "cuba"});
  CHECK(wrong.code == 1);
  check_has(wrong.err, {"cuba"});
}

TEST_CASE("command train: trains the bundled model") {
  if (!is_built(kCommand)) return;
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * i % 97) + "\n";
  const Ended ended = run({"train", "--text", written(folder.file("text"), text), "--steps", "2",
                           "--dim", "8", "--heads", "2", "--layers", "1", "--context", "16",
                           "--batch", "2", "--generate", "0", "--save", folder.file("saved")});
  INFO(ended.err);
  CHECK(ended.code == 0);
  check_has(ended.out, {"validation loss"});
  check_has(run({"inspect", folder.file("saved")}).out, {"checkpoint of sash at step 2"});
  check_has(run({"train", "--help"}).out, {"--attention"});
  CHECK(run({"train", "--lr", "-1"}).code == 1);
}
