#include "call_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sash {
namespace {

// The functions of an ELF file, by address. Empty if it has no symbol table or cannot be read.
class SymbolTable {
 public:
  explicit SymbolTable(const std::string& path) : file_(path, std::ios::binary) {
    const auto header = read<ElfW(Ehdr)>(0, 1);
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return;
    if (header[0].e_shentsize != sizeof(ElfW(Shdr))) return;
    const auto sections = read<ElfW(Shdr)>(header[0].e_shoff, header[0].e_shnum);
    for (const ElfW(Shdr) & section : sections) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
      const ElfW(Shdr)& strings = sections[section.sh_link];
      names_ = read<char>(strings.sh_offset, strings.sh_size);
      symbols_ = read<ElfW(Sym)>(section.sh_offset, section.sh_size / sizeof(ElfW(Sym)));
    }
    if (names_.empty() || names_.back() != '\0') symbols_.clear();
    std::erase_if(symbols_, [this](const ElfW(Sym) & symbol) {
      return (symbol.st_info & 0xf) != STT_FUNC || symbol.st_size == 0 ||
             symbol.st_name >= names_.size();
    });
    std::sort(symbols_.begin(), symbols_.end(),
              [](const ElfW(Sym) & a, const ElfW(Sym) & b) { return a.st_value < b.st_value; });
    file_.close();
  }

  // The function that holds `address`, or null.
  const char* find(uintptr_t address) const {
    auto after = std::upper_bound(
        symbols_.begin(), symbols_.end(), address,
        [](uintptr_t value, const ElfW(Sym) & symbol) { return value < symbol.st_value; });
    if (after == symbols_.begin()) return nullptr;
    const ElfW(Sym)& symbol = *--after;
    return address - symbol.st_value < symbol.st_size ? &names_[symbol.st_name] : nullptr;
  }

 private:
  template <class T>
  std::vector<T> read(uint64_t offset, uint64_t count) {
    constexpr uint64_t kMost = uint64_t{1} << 32;  // bytes: no table is that long
    if (count >= kMost / sizeof(T)) return {};
    std::vector<T> items(count);
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(offset));
    file_.read(reinterpret_cast<char*>(items.data()),
               static_cast<std::streamsize>(count * sizeof(T)));
    return file_ ? items : std::vector<T>();
  }

  std::ifstream file_;
  std::vector<ElfW(Sym)> symbols_;
  std::vector<char> names_;
};

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : symbol;
}

// Without what stands in brackets of this kind; "->", ">=" and the like are no brackets.
std::string without(const std::string& text, char open, char close) {
  constexpr std::string_view kOperator = "operator";
  std::string kept;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && kept.ends_with(kOperator) && (text[i] == '<' || text[i] == '>')) {
      const size_t end = std::min(i + 3, text.size());  // "<=>" is the longest
      while (i < end && std::strchr("<=>", text[i])) kept += text[i++];
    } else if (depth == 0 && kept.ends_with(kOperator) && text.compare(i, 2, "()") == 0) {
      kept += "()";
      i += 2;
    }
    if (i == text.size()) break;
    const bool arrow = text[i] == '>' && i > 0 && text[i - 1] == '-';
    if (text[i] == close && depth > 0 && !arrow) {
      --depth;
    } else if (text[i] == open) {
      ++depth;
    } else if (depth == 0) {
      kept += text[i];
    }
  }
  return kept;
}

void erase_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part)) {
    text.erase(at, part.size());
  }
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Finds the text of a return address, and remembers it.
class Symbols {
 public:
  const std::string& at(void* frame) {
    const auto [found, is_new] = texts_.try_emplace(frame);
    // The call lies before the address that it returns to.
    if (is_new) found->second = find(reinterpret_cast<uintptr_t>(frame) - 1);
    return found->second;
  }

 private:
  std::string find(uintptr_t address) {
    Dl_info info{};
    void* found = nullptr;
    if (!dladdr1(reinterpret_cast<void*>(address), &info, &found, RTLD_DL_LINKMAP) || !found) {
      return "unknown function";
    }
    const auto* const map = static_cast<const link_map*>(found);
    const bool is_program = !map->l_name || !*map->l_name;
    const std::string path = is_program ? "/proc/self/exe" : map->l_name;
    auto table = tables_.find(path);
    if (table == tables_.end()) table = tables_.emplace(path, SymbolTable(path)).first;
    const uintptr_t offset = address - map->l_addr;
    const char* symbol = table->second.find(offset);
    if (!symbol) symbol = info.dli_sname;
    if (symbol) return plain_name(symbol);
    char place[32];
    std::snprintf(place, sizeof place, "+0x%zx", static_cast<size_t>(offset));
    return "unknown function at " + file_name(info.dli_fname ? info.dli_fname : path) + place;
  }

  std::map<std::string, SymbolTable> tables_;
  std::unordered_map<void*, std::string> texts_;
};

}  // namespace

std::string plain_name(const char* symbol) {
  std::string text = demangled(symbol);
  erase_all(text, "(anonymous namespace)::");
  erase_all(text, "[abi:cxx11]");
  if (const size_t clone = text.find(" [clone"); clone != text.npos) text.resize(clone);
  const std::string whole = without(text, '(', ')');
  text = without(whole, '<', '>');
  erase_all(text, " const");
  text.erase(text.find_last_not_of(' ') + 1);
  const size_t space = text.rfind(' ');  // after the type of the result
  const bool converts = text.find("operator ") != text.npos;
  if (space != text.npos && !converts) text.erase(0, space + 1);
  while (text.starts_with('*') || text.starts_with('&')) text.erase(0, 1);
  // A std::function may have the user's lambda inlined.
  const size_t lambda = text.starts_with("std::") ? whole.find("{lambda") : text.npos;
  if (lambda == text.npos) return text;
  const size_t before = whole.find_last_of(" <,(&*", lambda);
  return whole.substr(before + 1, whole.find('}', lambda) - before);
}

std::string call_stack() {
  static std::mutex mutex;
  static Symbols symbols;
  std::array<void*, 64> frames;
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  // Neither this function nor, in front of it, a sanitizer's own `backtrace`.
  const auto end = frames.begin() + depth;
  const auto caller = std::find(frames.begin(), end, __builtin_return_address(0));
  const std::lock_guard lock(mutex);
  std::string text;
  for (auto frame = caller == end ? frames.begin() : caller; frame != end; ++frame) {
    const std::string& function = symbols.at(*frame);
    if (!function.starts_with("std::")) text += "\n    " + function;
    if (function == "main") break;
  }
  return text;
}

}  // namespace sash
