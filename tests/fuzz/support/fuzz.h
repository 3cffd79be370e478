#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fuzzer/FuzzedDataProvider.h>

/// What the fuzz targets share. A target is one source that defines `words`, `seeds` and `run`;
/// support/fuzz.cpp makes it a libFuzzer program and checks the limits of time and memory.
namespace sash::fuzz {

/// An input, taken field by field: integers from its end, text from its start.
using Bytes = FuzzedDataProvider;

/// Words of the format, which the mutator inserts.
extern const std::vector<std::string> words;
/// The first inputs.
std::vector<std::string> seeds();
/// Runs one input. An `sash::Error` is a correct answer; any other exception is a fault.
void run(Bytes& bytes);

/// Bytes of memory that a byte of the input may take, besides 4 MB; a target may set it.
inline size_t memory_factor = 20;

/// Reports a fault and ends the process.
[[noreturn]] void fail(const std::string& what);
inline void require(bool good, const char* what) {
  if (!good) fail(what);
}

/// A file that lives in memory and has a path.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

/// The file of this process, with these bytes.
std::string path_of(std::string_view bytes);
/// The bytes of a file of the repository's tests/parity.
std::string parity_file(const std::string& name);
/// One of `words`, or any short text.
std::string word(Bytes& bytes);
/// True once in `times`; false at the end of the input.
bool rarely(Bytes& bytes, uint32_t times);

/// The little-endian bytes of a number.
template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace sash::fuzz
