#include "token_decoder.h"

#include <optional>
#include <utility>

#include "../../core/error.h"
#include "pre_tokenizer.h"
#include "unicode.h"

namespace sash::text::token_decoders {
namespace {

using Tokens = std::vector<std::string>;

size_t bytes_in(const Tokens& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

std::string replaced(const std::string& text, std::string_view what, std::string_view by) {
  std::string result;
  size_t done = 0;
  for (size_t at; !what.empty() && (at = text.find(what, done)) != text.npos;) {
    result.append(text, done, at - done).append(by);
    done = at + what.size();
  }
  return result.append(text, done);
}

// The byte that <0x..> stands for.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::string digits = token.substr(3, 2);
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) return std::nullopt;
  return static_cast<char>(std::stoi(digits, nullptr, 16));
}

// Bytes of a token of a byte-level vocabulary.
std::string bytes_of(const std::string& token) {
  std::string bytes;
  for (const char32_t c : from_utf8("Tokenizer", token)) {
    const std::optional<uint8_t> byte = byte_of_character(c);
    if (!byte) return token;  // an added token
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

std::string cleaned_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> rules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, by] : rules) text = replaced(text, what, by);
  return text;
}

}  // namespace

TokenDecoder sequence(std::vector<TokenDecoder> parts) {
  return [parts = std::move(parts)](Tokens tokens) {
    const size_t before = bytes_in(tokens);
    for (const TokenDecoder& part : parts) {
      tokens = part(std::move(tokens));
      check_growth(before, bytes_in(tokens));
    }
    return tokens;
  };
}

TokenDecoder byte_level() {
  return [](const Tokens& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of(token);
    return Tokens{lossy_utf8(bytes)};
  };
}

TokenDecoder byte_fallback() {
  return [](const Tokens& tokens) {
    Tokens result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (lossy_utf8(bytes) == bytes) {
        result.push_back(bytes);
      } else {
        for (size_t i = 0; i < bytes.size(); ++i) result.push_back("\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (const std::string& token : tokens) {
      if (const std::optional<char> byte = byte_of(token)) {
        bytes.push_back(*byte);
        continue;
      }
      flush();
      result.push_back(token);
    }
    flush();
    return result;
  };
}

TokenDecoder fuse() {
  return [](const Tokens& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    return Tokens{all};
  };
}

TokenDecoder replace(const Pattern& pattern, const std::string& content) {
  const std::u32string by = from_utf8("Tokenizer", content);
  return [pattern, by](Tokens tokens) {
    for (std::string& token : tokens) {
      token = to_utf8(pattern.replace(from_utf8("Tokenizer", token), by));
    }
    return tokens;
  };
}

TokenDecoder strip(const std::string& content, size_t start, size_t stop) {
  if (content.empty()) throw FormatError("Tokenizer", "a content to strip that is not empty", "''");
  return [=](Tokens tokens) {
    for (std::string& token : tokens) {
      size_t begin = 0;
      for (size_t i = 0; i < start && token.compare(begin, content.size(), content) == 0; ++i) {
        begin += content.size();
      }
      token.erase(0, begin);
      for (size_t i = 0; i < stop && token.ends_with(content); ++i) {
        token.resize(token.size() - content.size());
      }
    }
    return tokens;
  };
}

TokenDecoder word_piece(const std::string& prefix, bool cleanup) {
  return [prefix, cleanup](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix)) {
        token.erase(0, prefix.size());
      } else if (i > 0) {
        token.insert(0, 1, ' ');
      }
      if (cleanup) token = cleaned_up(token);
    }
    return tokens;
  };
}

TokenDecoder metaspace(const std::string& replacement, bool prepended) {
  return [replacement, prepended](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], replacement, i == 0 && prepended ? "" : " ");
    }
    return tokens;
  };
}

}  // namespace sash::text::token_decoders
