#include "fuzz.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include <sanitizer/allocator_interface.h>
#include <sash/core/error.h>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace sash::fuzz {
namespace {

// 100 kB may take 1 s of processor time, with all checks of the sanitizers.
constexpr double kSeconds = 1, kSecondsPerByte = 1e-5;
// Live memory that a run adds, at its peak.
constexpr size_t kBytes = 4 << 20;

std::atomic<bool> measuring = false;
std::atomic<int64_t> live = 0, peak = 0;
int report = 2;  // standard error, which targets may not print to

void count_allocation(const volatile void*, size_t size) {
  if (!measuring.load(std::memory_order_relaxed)) return;
  const int64_t now = live += static_cast<int64_t>(size);
  if (now > peak.load(std::memory_order_relaxed)) peak = now;
}

void count_release(const volatile void* block) {
  if (!measuring.load(std::memory_order_relaxed) || !block) return;
  live -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<void*>(block)));
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void write_seeds(const std::string& folder) {
  ::mkdir(folder.c_str(), 0777);
  int number = 0;
  for (const std::string& seed : seeds()) {
    std::ofstream(folder + "/seed" + std::to_string(number++), std::ios::binary) << seed;
  }
}

}  // namespace

void fail(const std::string& what) {
  measuring = false;
  ::dprintf(report, "==fault: %s\n", what.c_str());
  std::abort();
}

MemoryFile::MemoryFile()
    : descriptor_(::memfd_create("input", 0)),
      path_("/proc/self/fd/" + std::to_string(descriptor_)) {}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

void MemoryFile::write(std::string_view bytes) {
  const bool written =
      ::ftruncate(descriptor_, 0) == 0 &&
      ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  if (!written) fail("the input could not be written");
}

std::string path_of(std::string_view bytes) {
  static MemoryFile file;
  file.write(bytes);
  return file.path();
}

std::string parity_file(const std::string& name) {
  std::ifstream file(SASH_TEST_PARITY "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string word(Bytes& bytes) {
  if (!words.empty() && bytes.ConsumeIntegral<uint8_t>() % 8 != 0) {
    return words[bytes.ConsumeIntegralInRange<size_t>(0, words.size() - 1)];
  }
  return bytes.ConsumeRandomLengthString(24);
}

bool rarely(Bytes& bytes, uint32_t times) {
  return bytes.remaining_bytes() > 0 &&
         bytes.ConsumeIntegralInRange<uint32_t>(0, times - 1) == times - 1;
}

}  // namespace sash::fuzz

using namespace sash::fuzz;

/// --seeds=FOLDER writes the first inputs and ends.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  ::setenv("SASH_NUM_THREADS", "1", 0);
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (!argument.starts_with("--seeds=")) continue;
    write_seeds(std::string(argument.substr(8)));
    std::exit(0);
  }
  report = ::dup(2);
  __sanitizer_install_malloc_and_free_hooks(count_allocation, count_release);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static bool first = true;  // it fills caches and opens the backend
  Bytes bytes(data, size);
  live = peak = 0;
  measuring = !first;
  const double start = processor_seconds();
  try {
    run(bytes);
  } catch (const sash::Error&) {
  }
  const double seconds = processor_seconds() - start;
  measuring = false;
  const double most = std::max(kSeconds, kSecondsPerByte * static_cast<double>(size));
  if (!first && seconds > most) fail("it takes " + std::to_string(seconds) + " s");
  if (peak > static_cast<int64_t>(kBytes + memory_factor * size)) {
    fail("it takes " + std::to_string(peak) + " bytes of memory for " + std::to_string(size));
  }
  first = false;
  return 0;
}

/// Half of the mutations are libFuzzer's. The others insert a word, replace bytes by one, or repeat
/// a part of the input until it is long: what takes a time that grows with the square of it.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  const auto below = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  const size_t choice = below(32);
  if (choice < 16 || size == 0 || words.empty()) return LLVMFuzzerMutate(data, size, most);
  std::string text(reinterpret_cast<const char*>(data), size);
  const size_t at = below(size);
  const std::string& chosen = words[below(words.size())];
  if (choice < 22) {
    text.insert(at, chosen);
  } else if (choice < 28) {
    text.replace(at, 1 + below(std::min<size_t>(size - at, 8)), chosen);
  } else if (choice < 31) {
    text.erase(at, 1 + below(std::min<size_t>(size - at, 16)));
  } else {
    const std::string part = text.substr(at, 1 + below(std::min<size_t>(size - at, 24)));
    const size_t longest = below(8) == 0 ? most : std::min(most, size + 8 * part.size());
    std::string copies;
    while (text.size() + copies.size() + part.size() <= longest) copies += part;
    text.insert(at, copies);
  }
  if (text.size() > most) text.resize(most);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
