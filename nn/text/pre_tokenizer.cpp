#include "pre_tokenizer.h"

#include <array>
#include <unordered_map>
#include <utility>

#include "unicode.h"

namespace sash::text {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> t{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      t[byte] = shown ? byte : next++;
    }
    return t;
  }();
  return table;
}

struct Part {
  size_t begin, end;
  bool match;
};

using Parts = std::vector<Part>;

Parts parts_of(const std::u32string& text, bool invert,
               const std::vector<Pattern::Match>& matches) {
  Parts parts;
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), invert});
  return parts;
}

Parts merged_with_previous(const Parts& parts) {
  Parts merged;
  bool last = false;
  for (const Part& part : parts) {
    if (part.match && !last && !merged.empty()) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
    last = part.match;
  }
  return merged;
}

Parts merged_with_next(const Parts& parts) {
  Parts merged;  // the last first
  bool last = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !last && !merged.empty()) {
      merged.back().begin = part->begin;
    } else {
      merged.push_back(*part);
    }
    last = part->match;
  }
  return {merged.rbegin(), merged.rend()};
}

Parts contiguous(const Parts& parts) {
  Parts merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().match == part.match) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
  }
  return merged;
}

Parts behaved(Parts parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return parts;
    case SplitBehavior::isolated:
      return parts;
    case SplitBehavior::merged_with_previous:
      return merged_with_previous(parts);
    case SplitBehavior::merged_with_next:
      return merged_with_next(parts);
    case SplitBehavior::contiguous:
      return contiguous(parts);
  }
  return parts;
}

// Adds what becomes of `piece`.
void append(std::vector<Piece>& pieces, const Piece& piece, const Parts& parts) {
  for (const Part& part : parts) {
    if (part.begin == part.end) continue;  // an empty match only cuts
    pieces.push_back(
        {piece.text.substr(part.begin, part.end - part.begin), piece.first && part.begin == 0});
  }
}

// Splits where `is_match(character)`.
template <class F>
PreTokenizer split_characters(SplitBehavior behavior, F is_match) {
  return [behavior, is_match](const std::vector<Piece>& pieces) {
    std::vector<Piece> result;
    for (const Piece& piece : pieces) {
      std::vector<Pattern::Match> matches;
      for (size_t at = 0; at < piece.text.size(); ++at) {
        if (is_match(piece.text[at])) matches.emplace_back(at, at + 1);
      }
      append(result, piece, behaved(parts_of(piece.text, false, matches), behavior));
    }
    return result;
  };
}

bool is_punctuation(char32_t c) {
  const bool ascii = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
                     (c >= '{' && c <= '~');
  static const uint32_t set = category_set("P");
  return ascii || is_in(c, set);
}

std::u32string characters_of_bytes(const std::u32string& text) {
  std::u32string result;
  for (const char byte : to_utf8(text))
    result.push_back(character_of_byte(static_cast<uint8_t>(byte)));
  return result;
}

}  // namespace

char32_t character_of_byte(uint8_t byte) { return byte_characters()[byte]; }

std::optional<uint8_t> byte_of_character(char32_t c) {
  static const std::array<int, 512> table = [] {
    std::array<int, 512> t{};
    t.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) t[byte_characters()[byte]] = static_cast<int>(byte);
    return t;
  }();
  if (c >= table.size() || table[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(table[c]);
}

namespace pre_tokenizers {

PreTokenizer sequence(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](std::vector<Piece> pieces) {
    for (const PreTokenizer& part : parts) pieces = part(std::move(pieces));
    return pieces;
  };
}

PreTokenizer split(const Pattern& pattern, SplitBehavior behavior, bool invert) {
  return [=](const std::vector<Piece>& pieces) {
    std::vector<Piece> result;
    for (const Piece& piece : pieces) {
      const auto parts = parts_of(piece.text, invert, pattern.matches(piece.text));
      append(result, piece, behaved(parts, behavior));
    }
    return result;
  };
}

PreTokenizer byte_level(bool add_prefix_space, bool split) {
  const PreTokenizer words =
      split ? pre_tokenizers::split(Pattern(kGpt2Pattern), SplitBehavior::isolated)
            : PreTokenizer();
  return [add_prefix_space, words](std::vector<Piece> pieces) {
    for (Piece& piece : pieces) {
      if (add_prefix_space && !piece.text.starts_with(U' ')) piece.text.insert(0, 1, U' ');
    }
    if (words) pieces = words(std::move(pieces));
    for (Piece& piece : pieces) piece.text = characters_of_bytes(piece.text);
    return pieces;
  };
}

PreTokenizer bert() { return sequence({whitespace_split(), punctuation(SplitBehavior::isolated)}); }

PreTokenizer whitespace() {
  return [](const std::vector<Piece>& pieces) {
    std::vector<Piece> result;
    for (const Piece& piece : pieces) {
      const std::u32string& text = piece.text;
      Parts parts;
      for (size_t at = 0; at < text.size(); ++at) {
        if (is_space(text[at])) continue;
        const bool word = is_word(text[at]);
        const bool more = !parts.empty() && parts.back().end == at && parts.back().match == word;
        if (!more) parts.push_back({at, at, word});
        parts.back().end = at + 1;
      }
      append(result, piece, parts);
    }
    return result;
  };
}

PreTokenizer whitespace_split() { return split_characters(SplitBehavior::removed, is_space); }

PreTokenizer digits(bool individual) {
  const uint32_t set = category_set("N");
  return split_characters(individual ? SplitBehavior::isolated : SplitBehavior::contiguous,
                          [set](char32_t c) { return is_in(c, set); });
}

PreTokenizer punctuation(SplitBehavior behavior) {
  return split_characters(behavior, is_punctuation);
}

PreTokenizer metaspace(char32_t replacement, Prepend prepend, bool split) {
  const PreTokenizer words = split_characters(
      SplitBehavior::merged_with_next, [replacement](char32_t c) { return c == replacement; });
  return [=](std::vector<Piece> pieces) {
    for (Piece& piece : pieces) {
      for (char32_t& c : piece.text) c = c == ' ' ? replacement : c;
      const bool wanted = prepend == Prepend::always || (prepend == Prepend::first && piece.first);
      if (wanted && !piece.text.starts_with(replacement)) piece.text.insert(0, 1, replacement);
    }
    return split ? words(std::move(pieces)) : pieces;
  };
}

}  // namespace pre_tokenizers
}  // namespace sash::text
