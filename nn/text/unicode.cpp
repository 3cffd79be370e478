#include "unicode.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../core/error.h"
#include "unicode_tables.h"

namespace sash::text {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// ---- the tables, read on first use --------------------------------------------------------------

class Digits {
 public:
  explicit Digits(const char* text) : next_(text) {}
  bool done() const { return *next_ == '\0'; }
  uint32_t take() {
    uint32_t value = 0;
    for (int shift = 0;; shift += 5) {
      const uint32_t digit = digit_of(*next_++);
      value |= (digit & 31) << shift;
      if (digit < 32) return value;
    }
  }
  int32_t take_signed() {
    const uint32_t value = take();
    return value % 2 == 0 ? static_cast<int32_t>(value / 2) : -static_cast<int32_t>(value / 2) - 1;
  }

 private:
  static uint32_t digit_of(char c) {
    if (c >= 'a') return static_cast<uint32_t>(c - 'a') + 26;
    if (c >= 'A') return static_cast<uint32_t>(c - 'A');
    if (c >= '0') return static_cast<uint32_t>(c - '0') + 52;
    return c == '+' ? 62 : 63;
  }
  const char* next_;
};

// Values of runs of code points; the first 256 are looked up.
class RunTable {
 public:
  void add(uint32_t length, uint8_t value) {
    for (uint32_t c = end_; c < std::min<uint32_t>(end_ + length, 256); ++c) low_[c] = value;
    runs_.emplace_back(end_, value);
    end_ += length;
  }
  uint8_t at(char32_t c) const {
    if (c < 256) return low_[c];
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), c,
                         [](char32_t code, const auto& run) { return code < run.first; });
    return std::prev(after)->second;
  }

 private:
  std::vector<std::pair<uint32_t, uint8_t>> runs_;
  std::array<uint8_t, 256> low_{};
  uint32_t end_ = 0;
};

const RunTable& categories() {
  static const RunTable table = [] {
    RunTable t;
    for (Digits digits(tables::kCategories); !digits.done();) {
      const uint32_t run = digits.take();
      t.add(run / 32, static_cast<uint8_t>(run % 32));
    }
    return t;
  }();
  return table;
}

const RunTable& combining_classes() {
  static const RunTable table = [] {
    RunTable t;
    for (Digits digits(tables::kCombiningClasses); !digits.done();) {
      const uint32_t length = digits.take();
      t.add(length, static_cast<uint8_t>(digits.take()));
    }
    return t;
  }();
  return table;
}

using CharacterMap = std::unordered_map<char32_t, char32_t>;

CharacterMap character_map(const char* table) {
  CharacterMap t;
  char32_t code = 0;
  for (Digits digits(table); !digits.done();) {
    code += digits.take();
    t.emplace(code, static_cast<char32_t>(static_cast<int32_t>(code) + digits.take_signed()));
  }
  return t;
}

const CharacterMap& lower_cases() {
  static const CharacterMap table = character_map(tables::kLowerCase);
  return table;
}

struct Decompositions {
  std::unordered_map<char32_t, std::u32string> parts;
  std::unordered_map<uint64_t, char32_t> whole;  // by `pair`
};

uint64_t pair(char32_t a, char32_t b) { return uint64_t{a} << 32 | b; }

const Decompositions& decompositions() {
  static const Decompositions table = [] {
    Decompositions t;
    char32_t code = 0;
    for (Digits digits(tables::kDecompositions); !digits.done();) {
      const uint32_t head = digits.take();
      code += head / 4;
      std::u32string parts(
          1, static_cast<char32_t>(static_cast<int32_t>(code) + digits.take_signed()));
      if (head & 2) parts.push_back(digits.take());
      if ((head & 1) && parts.size() == 2) t.whole.emplace(pair(parts[0], parts[1]), code);
      t.parts.emplace(code, std::move(parts));
    }
    return t;
  }();
  return table;
}

// Hangul syllables are computed: a leading consonant, a vowel, a trailing consonant or none.
constexpr char32_t kSyllables = 0xac00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kVowelCount = 21, kTrailingCount = 28, kSyllableCount = 11172;

void append_decomposed(std::u32string& text, char32_t c) {
  if (c < 0xc0) {
    text.push_back(c);
  } else if (const char32_t s = c - kSyllables; c >= kSyllables && s < kSyllableCount) {
    text.push_back(kLeading + s / (kVowelCount * kTrailingCount));
    text.push_back(kVowels + s / kTrailingCount % kVowelCount);
    if (s % kTrailingCount != 0) text.push_back(kTrailing + s % kTrailingCount);
  } else if (const auto found = decompositions().parts.find(c);
             found != decompositions().parts.end()) {
    for (const char32_t part : found->second) append_decomposed(text, part);
  } else {
    text.push_back(c);
  }
}

char32_t composed(char32_t a, char32_t b) {  // 0 if they do not compose
  if (a >= kLeading && a < kLeading + 19 && b >= kVowels && b < kVowels + kVowelCount) {
    return kSyllables + ((a - kLeading) * kVowelCount + (b - kVowels)) * kTrailingCount;
  }
  const char32_t s = a - kSyllables;
  if (a >= kSyllables && s < kSyllableCount && s % kTrailingCount == 0 && b > kTrailing &&
      b < kTrailing + kTrailingCount) {
    return a + (b - kTrailing);
  }
  const auto found = decompositions().whole.find(pair(a, b));
  return found == decompositions().whole.end() ? 0 : found->second;
}

// ---- UTF-8 --------------------------------------------------------------------------------------

struct Character {
  char32_t code = kReplacement;
  size_t bytes = 1;  // of the character, or of the part that begins one
  bool valid = false;
  bool cut = false;  // what is there may begin a character
};

// The character at the front of bytes, which are not empty.
Character front(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return {};
  char32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {kReplacement, i, false, true};
    // No character is longer than it must be, a surrogate, or beyond U+10FFFF.
    const uint8_t least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < least || byte(i) > most) return {kReplacement, i};
    code = code << 6 | (byte(i) & 0x3f);
  }
  return {code, length, true};
}

}  // namespace

std::u32string from_utf8(std::string_view op, std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = front(text.substr(at));
    if (!c.valid) {
      throw ValueError(
          op, "UTF-8 text",
          "byte " + std::to_string(static_cast<uint8_t>(text[at])) + " at " + std::to_string(at));
    }
    codes.push_back(c.code);
    at += c.bytes;
  }
  return codes;
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return push(c);
  if (c < 0x800) {
    push(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3f));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3f));
    push(0x80 | (c >> 6 & 0x3f));
  }
  push(0x80 | (c & 0x3f));
}

std::string to_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(bytes, c);
  return bytes;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = front(bytes.substr(at));
    append_utf8(text, c.code);
    at += c.bytes;
  }
  return text;
}

size_t whole_utf8(std::string_view bytes) {
  // A character that is cut off has at most three bytes.
  for (size_t at = bytes.size() - std::min<size_t>(bytes.size(), 3); at < bytes.size();) {
    const Character c = front(bytes.substr(at));
    if (c.cut) return at;
    at += c.bytes;
  }
  return bytes.size();
}

// ---- properties ---------------------------------------------------------------------------------

Category category(char32_t c) { return static_cast<Category>(categories().at(c)); }

uint32_t category_set(std::string_view name) {
  static constexpr std::string_view names =
      "Cc Cf Cn Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs ";
  uint32_t set = 0;
  if (name.empty() || name.size() > 2) return 0;
  for (size_t i = 0; 3 * i < names.size(); ++i) {
    if (names.substr(3 * i, name.size()) == name) set |= uint32_t{1} << i;
  }
  return set;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  static const uint32_t set = category_set("L") | category_set("M") | category_set("Nd") |
                              category_set("Nl") | category_set("Pc");
  const bool enclosed = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
                        (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
  return is_in(c, set) || enclosed || is_joiner(c);  // enclosed letters are Other_Alphabetic
}

char32_t lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  const auto found = lower_cases().find(c);
  return found == lower_cases().end() ? c : found->second;
}

std::u32string any_case(char32_t c) {
  static const CharacterMap folds = [] {
    CharacterMap t = character_map(tables::kCaseFolds);
    t.insert(lower_cases().begin(), lower_cases().end());
    return t;
  }();
  static const auto others = [] {
    std::unordered_map<char32_t, std::u32string> t;  // by what they fold to
    for (const auto& [code, to] : folds) t[to].push_back(code);
    return t;
  }();
  const auto fold = folds.find(c);
  const char32_t folded = fold == folds.end() ? c : fold->second;
  const auto found = others.find(folded);
  std::u32string all(1, folded);
  return found == others.end() ? all : all + found->second;
}

std::u32string lower(std::u32string_view text) {
  std::u32string result;
  for (const char32_t c : text) {
    if (c == 0x130) {
      result += U"i\u0307";
    } else {
      result.push_back(lower(c));
    }
  }
  return result;
}

std::u32string nfd(std::u32string_view text) {
  std::u32string result;
  for (const char32_t c : text) append_decomposed(result, c);
  const auto rank = [](char32_t c) { return c < 0x300 ? 0 : combining_classes().at(c); };
  for (size_t at = 0; at < result.size();) {
    size_t end = at + 1;
    if (rank(result[at]) != 0) {
      while (end < result.size() && rank(result[end]) != 0) ++end;
      std::stable_sort(result.begin() + static_cast<std::ptrdiff_t>(at),
                       result.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](char32_t a, char32_t b) { return rank(a) < rank(b); });
    }
    at = end;
  }
  return result;
}

std::u32string nfc(std::u32string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x300; });
  if (plain) return std::u32string(text);
  std::u32string result;
  size_t starter = std::u32string::npos;  // the last one of class 0
  int last = 0;                           // class of what was kept after it; 0: nothing
  for (const char32_t c : nfd(text)) {
    const int rank = combining_classes().at(c);
    const bool blocked = last != 0 && last >= rank;
    if (starter != std::u32string::npos && !blocked) {
      if (const char32_t both = composed(result[starter], c)) {
        result[starter] = both;
        continue;
      }
    }
    if (rank == 0) starter = result.size();
    last = rank;
    result.push_back(c);
  }
  return result;
}

}  // namespace sash::text
