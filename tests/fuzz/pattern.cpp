// A regular expression, a byte of 0, and a text to search. Both are short: Oniguruma takes a time
// that grows with the square of the text for some expressions, and counts no steps meanwhile.
#include <sash/nn/text/pattern.h>
#include <sash/nn/text/unicode.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{
    "(",        ")",   "[",    "]",    "{2}",        "{1000}", "{0,100000}",
    "*",        "+",   "?",    "*?",   "++",         "|",      ".",
    "^",        "$",   "\\s",  "\\S",  "\\p{L}",     "\\p{N}", "\\P{Lu}",
    "(?i:",     "(?!", "(?<=", "(?<!", "(?>",        "(?<n>",  "\\k<n>",
    "\\g<n>",   "\\1", "&&",   "[^",   "\\x{1F600}", "\\R",    "\\X",
    "\\K",      "\\b", "(?#",  "(?~",  "(a+)+",      "(a|a)*", "\xc3\x9f",
    "\xc5\xbf", "a",   "b",    " ",    "'s",         "\n",     std::string(1, '\0')};

std::vector<std::string> seeds() {
  const std::string text = std::string(1, '\0') + "it's 12 a\xc3\x9f\n  b";
  std::vector<std::string> all;
  for (const char* pattern :
       {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+)", "a*", "(a+)+b", "^|$",
        R"((?<=a)b[a-z&&[^b]]\x{e9}\u00e9)", "(?<n>a|b\\g<n>)", "\\X+"}) {
    all.push_back(pattern + text);
  }
  return all;
}

void run(Bytes& bytes) {
  const std::string all = bytes.ConsumeBytesAsString(4096);
  const size_t end = std::min(all.find('\0'), all.size());
  const text::Pattern pattern(all.substr(0, end));
  const std::u32string text =
      text::from_utf8("fuzz", end < all.size() ? all.substr(end + 1) : "aab");
  size_t last = 0;
  for (const auto& [begin, past] : pattern.matches(text)) {
    require(begin >= last && past >= begin && past <= text.size(), "matches follow each other");
    last = past;
  }
  pattern.find(text, text.size() / 2);
  pattern.replace(text, U"_");
}

}  // namespace sash::fuzz
