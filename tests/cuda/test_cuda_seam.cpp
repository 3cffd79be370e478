// The wall between libsash and libsash_cuda, seen from outside. Needs no card: what a machine
// without one answers is part of what is tested.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/backend/plugin.h>
#include <sash/core/distributed/engine.h>
#include <sash/core/error.h>
#include <sash/ops/kernels/elementwise.h>
#include <sash/ops/kernels/linalg.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/kernels/gradients.h>
#include <sash/tensor/kernels/memory.h>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
namespace fs = std::filesystem;

namespace {

/// The file that holds libsash's code.
fs::path libsash_file() {
  Dl_info info{};
  REQUIRE(dladdr(reinterpret_cast<const void*>(&detail::open_cuda_library), &info) != 0);
  return fs::canonical(info.dli_fname);
}

fs::path plugin_file() { return libsash_file().parent_path() / "libsash_cuda.so"; }

bool plugin_missing() {
  if (fs::exists(plugin_file())) return false;
  if (std::getenv("SASH_REQUIRE_CUDA")) FAIL("libsash_cuda.so is not beside libsash");
  MESSAGE("skipped: built without libsash_cuda.so");
  return true;
}

template <class Function>
Function plugin_symbol(const char* name) {
  void* library = dlopen(plugin_file().c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library, dlerror());
  void* symbol = dlsym(library, name);
  REQUIRE(symbol);
  return reinterpret_cast<Function>(symbol);
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'", text, "' lacks '", part, "'");
  return found;
}

/// The registry tries a backend once per process, so each question is asked in a process of its
/// own: what Device::parse(device) gives, or its error, under `environment`.
std::string ask(const std::string& device, const std::string& environment,
                const std::string& child = "child") {
  const char* const emulator = std::getenv("SASH_EMULATOR");  // of a cross build
  const std::string command = "env -u SASH_CUDA_LIBRARY -u SASH_DEVICE " + environment +
                              " SASH_TEST_DEVICE='" + device + "' " + (emulator ? emulator : "") +
                              " '" + fs::read_symlink("/proc/self/exe").string() +
                              "' --no-skip '--test-case=cuda seam: " + child + "' 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string output;
  char part[512];
  while (std::fgets(part, sizeof(part), pipe)) output += part;
  ::pclose(pipe);
  const size_t begin = output.find("[[");
  const size_t end = output.find("]]");
  REQUIRE_MESSAGE(end != std::string::npos, output);
  return output.substr(begin + 2, end - begin - 2);
}

}  // namespace

TEST_CASE("cuda seam: child" * doctest::skip()) {
  const char* device = std::getenv("SASH_TEST_DEVICE");
  std::string answer;
  try {
    answer = to_string(device ? Device::parse(device) : default_device());
  } catch (const DeviceError& error) {
    answer = error.what();
  }
  std::printf("[[%s]]\n", answer.c_str());
}

TEST_CASE("cuda seam: work on cards without kernels" * doctest::skip()) {
  Backend& cards = backend(DeviceType::cuda);
  const Device second(DeviceType::cuda, 1);
  set_default_device(second);
  const uint64_t fallbacks = fallback_calls();
  std::string answers = to_string(default_device()) + ", " + to_string(empty({2}).device());
  if (!use_fused(kernels::matmul, second)) answers += ", no fused kernel";
  if (fallback_calls() == fallbacks + 1) answers += ", counted";
  for (const auto& wrong : std::vector<std::function<void()>>{
           [] { zeros({2}); }, [] { set_default_device(Device(DeviceType::cuda, 2)); },
           [&] { cards.allocate_host(8); }, [&] { cards.make_engine(second, 0, 2, ""); }}) {
    answers += "\n" + testing::thrown_by(wrong);
  }
  std::printf("[[%s]]\n", answers.c_str());
}

TEST_CASE("cuda seam: both sides see the same slots") {
  if (plugin_missing()) return;
  const auto address = plugin_symbol<const void* (*)(const char*)>("sash_cuda_slot_address");
  CHECK(address("fill") == &kernels::fill);
  CHECK(address("copy") == &kernels::copy);
  CHECK(address("accumulate") == &kernels::accumulate);
  CHECK(address("arange") == &kernels::arange);
  CHECK(address("add") == &kernels::slot<op::Add>());
  CHECK(address("matmul") == &kernels::matmul);
  CHECK(address("no such slot") == nullptr);
}

TEST_CASE("cuda seam: a plug-in of another ABI is refused") {
  if (plugin_missing()) return;
  const auto entry = plugin_symbol<RegisterPlugin>("sash_register_cuda");
  const char* reason = entry(kPluginAbiVersion + 2);
  REQUIRE(reason);
  const std::string text = "libsash_cuda was built for plug-in ABI " +
                           std::to_string(kPluginAbiVersion) + ", libsash has " +
                           std::to_string(kPluginAbiVersion + 2) + ": ";
  CHECK(contains(reason, text));
  CHECK(contains(reason, "/libsash_cuda.so"));
}

TEST_CASE("cuda seam: errors name a library that is missing or no plug-in") {
  const TemporaryFolder folder;
  const std::string absent = folder.file("absent.so");
  const std::string reason = detail::open_cuda_library(absent);
  CHECK(contains(reason, "the CUDA library could not be opened: " + absent));
  CHECK(detail::open_cuda_library("libm.so.6") ==
        "libm.so.6 is not a sash plug-in: it has no sash_register_cuda");
}

TEST_CASE("cuda seam: a plug-in with two cards, or with a reason why there are none") {
  const fs::path fake = testing::program("../lib/libsash_fake_cards.so");
  if (!testing::is_built(fake.string())) return;
  const std::string setting = "SASH_CUDA_LIBRARY='" + fake.string() + "' ";
  CHECK(ask("cuda", setting) == "cuda:0");
  CHECK(ask("auto", setting) == "cuda:0");
  CHECK(ask("cuda:1", setting) == "cuda:1");
  CHECK(ask("cuda:2", setting) == "Device::parse: expected a CUDA device below 2, got 'cuda:2'");
  const std::string rank = setting + "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 ";
  CHECK(ask("cuda", rank) == "cuda:1");
  CHECK(ask("auto", rank) == "cuda:1");
  CHECK(ask("cuda", rank + "LOCAL_RANK=2") ==
        "Device::parse: expected a CUDA device below 2, got 'cuda'");
  CHECK(ask("cuda", setting + "SASH_FAKE_CARDS='no driver'") == "cuda: no driver");
  CHECK(ask("auto", setting + "SASH_FAKE_CARDS=throw") == "cpu");
  CHECK(ask("cuda", setting + "SASH_FAKE_CARDS=throw") == "cuda: the driver is too old");
  CHECK(ask("", setting, "work on cards without kernels") ==
        "cuda:1, cuda:1, no fused kernel, counted\n"
        "NotImplemented: fill: has no cuda kernel\n"
        "DeviceError: cuda: expected an index in [0, 2), got 2\n"
        "NotImplemented: allocate_host: the cuda backend has no page-locked memory\n"
        "NotImplemented: distributed: no collectives for cuda");
}

TEST_CASE("cuda seam: a library that is cut off is named, and the CPU works on") {
  const TemporaryFolder folder;
  const std::string path = folder.file("libsash_cuda.so");
  fs::copy_file(fs::exists(plugin_file()) ? plugin_file() : libsash_file(), path);
  for (int part = 0; part < 6; ++part) {
    fs::resize_file(path, part < 5 ? fs::file_size(path) * 4 / 5 : 10);
    CHECK(contains(detail::open_cuda_library(path), "the CUDA library could not be opened: " +
                                                        path + (part < 5 ? " is cut off" : "")));
  }
  CHECK(contains(ask("cuda", "SASH_CUDA_LIBRARY='" + path + "'"), path));
  CHECK(ask("auto", "SASH_CUDA_LIBRARY='" + path + "'") == "cpu");
}

TEST_CASE("cuda seam: a wrong SASH_CUDA_LIBRARY is an error, and no other place is searched") {
  const TemporaryFolder folder;
  const std::string setting = "SASH_CUDA_LIBRARY='" + folder.file("absent.so") + "'";
  CHECK(contains(ask("cuda", setting), "cuda: the CUDA library could not be opened: "));
  CHECK(contains(ask("cuda:7", setting), "cuda: the CUDA library could not be opened: "));
  CHECK(ask("auto", setting) == "cpu");
  CHECK(ask("cpu", setting) == "cpu");
}

TEST_CASE("cuda seam: a missing libsash_cuda is named with its folder") {
  const fs::path libsash = libsash_file();
  if (libsash.filename().string().find(".so") == std::string::npos) {
    MESSAGE("skipped: a static build");
    return;
  }
  const TemporaryFolder folder;
  // The name it is linked by: libsash.so and the first two numbers of the version.
  const std::string name = libsash.filename().string();
  fs::copy_file(libsash, folder.file(name.substr(0, name.rfind('.'))));
  const fs::path alone = fs::path(folder.file("x")).parent_path();
  const std::string answer = ask("cuda", "LD_LIBRARY_PATH='" + alone.string() + "'");
  if (fs::exists(plugin_file())) {
    CHECK(contains(answer, "cuda: the library libsash_cuda.so was not found beside libsash"));
    CHECK(contains(answer, alone.string()));
  } else {
    CHECK(contains(answer, "beside libsash"));
  }
}

TEST_CASE("cuda seam: libsash of a level of processors takes the plug-in of the folder above") {
  const fs::path fake = testing::program("../lib/libsash_fake_cards.so"), libsash = libsash_file();
  if (!testing::is_built(fake.string())) return;
  const TemporaryFolder folder;
  const fs::path level = fs::path(folder.file("glibc-hwcaps")) / "x86-64-v3";
  fs::create_directories(level);
  const std::string name = libsash.filename().string();
  fs::copy_file(libsash, level / name.substr(0, name.rfind('.')));
  const std::string setting = "LD_LIBRARY_PATH='" + level.string() + "' ";
  const std::string answer = ask("cuda", setting);
  CHECK(contains(answer, "beside libsash"));
  fs::copy_file(fake, folder.file("libsash_cuda.so"));
  CHECK(ask("cuda", setting) == "cuda:0");
}

TEST_CASE("cuda seam: a missing driver and a missing device have different messages") {
  if (plugin_missing()) return;
  const std::string reason = ask("cuda", "");
  if (reason == "cuda:0") {
    CHECK(ask("auto", "") == "cuda:0");
    const std::string hidden = ask("cuda", "CUDA_VISIBLE_DEVICES=-1");
    CHECK(contains(hidden, "cuda: no CUDA device: "));
    CHECK(ask("auto", "CUDA_VISIBLE_DEVICES=-1") == "cpu");
    const std::string seventh = ask("cuda:7", "CUDA_VISIBLE_DEVICES=0");
    CHECK(seventh == "Device::parse: expected a CUDA device below 1, got 'cuda:7'");
    return;
  }
  const bool told =
      reason.starts_with("cuda: no CUDA driver: ") || reason.starts_with("cuda: no CUDA device: ");
  CHECK_MESSAGE(told, reason);
  CHECK(ask("cuda:7", "") == reason);
  CHECK(ask("auto", "") == "cpu");
}

TEST_CASE("cuda seam: the error for a misspelt device lists the right spellings") {
  for (const char* wrong : {"gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:12345", "CUDA", ""}) {
    CHECK_THROWS_WITH_AS(Device::parse(wrong),
                         (std::string("Device::parse: expected 'auto', 'cpu', 'cuda' or "
                                      "'cuda:<index>', got '") +
                          wrong + "'")
                             .c_str(),
                         DeviceError);
  }
}
