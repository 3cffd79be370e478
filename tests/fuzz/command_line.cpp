// Arguments, separated by bytes of 0: of the training, which is parsed and not run, and of the
// commands of `sash` that neither write files nor start programs.
#include <algorithm>
#include <array>
#include <functional>

#include "support/fuzz.h"

// Of optim/tool/main.cpp and examples/train_transformer/options.h.
int sash_main(int argc, char** argv);
struct Options;
int run_with_options(int argc, char** argv, const std::function<int(const Options&)>& program);

namespace sash::fuzz {

const std::vector<std::string> words{"--steps",
                                     "--attention",
                                     "--precision",
                                     "--save",
                                     "--resume",
                                     "--lr",
                                     "--dropout",
                                     "--device",
                                     "--no-capture",
                                     "--help",
                                     "--version",
                                     "--seed",
                                     "--temperature",
                                     "--dim",
                                     "--",
                                     "=",
                                     "-1",
                                     "nan",
                                     "1e400",
                                     "18446744073709551616",
                                     "causal_window:64",
                                     "bf16",
                                     "inspect",
                                     "mask",
                                     "--tokens",
                                     "devices",
                                     "/proc/self/fd/0",
                                     std::string(1, '\0')};

std::vector<std::string> seeds() {
  const std::string zero(1, '\0');
  return {
      "--steps" + zero + "5" + zero + "--lr=1e-3" + zero + "--attention" + zero + "causal\1",
      "mask" + zero + "causal_window:4 | sinks:1" + zero + "--tokens" + zero + "8" + zero + "\2",
      "inspect" + zero + "/dev/null" + zero + "\2", "--help\2", "--help\1"};
}

void run(Bytes& bytes) {
  memory_factor = 400;  // an argument of a byte is several strings
  const bool trains = bytes.ConsumeBool();
  std::string text = bytes.ConsumeRemainingBytesAsString() + '\0';
  std::vector<std::string> arguments{"sash"};
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) {
    arguments.push_back(text.c_str() + at);
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int count = static_cast<int>(arguments.size());
  if (trains) {
    const int code = run_with_options(count, pointers.data(), [](const Options&) { return 0; });
    require(code == 0 || code == 1, "the exit code is 0 or 1");
    return;
  }
  static constexpr std::array<std::string_view, 6> safe{"mask",   "inspect",   "devices",
                                                        "--help", "--version", "-h"};
  const bool runs = std::find(safe.begin(), safe.end(), arguments[1]) != safe.end() &&
                    text.find("--svg") == text.npos && text.find("/dev") == text.npos;
  if (!runs) return;
  const int code = sash_main(count, pointers.data());
  require(code == 0 || code == 1, "the exit code is 0 or 1");
}

}  // namespace sash::fuzz
