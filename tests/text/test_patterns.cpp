#include <doctest/doctest.h>
#include <sash/nn/text/added_tokens.h>
#include <sash/nn/text/normalizer.h>
#include <sash/nn/text/pre_tokenizer.h>
#include <sash/nn/text/unicode.h>

// Every expected text is what the library tokenizers 0.23 gives.

using namespace sash::text;
using enum SplitBehavior;

namespace {

std::string pieces(const PreTokenizer& split, const std::string& text) {
  std::string all;
  for (const Piece& piece : split({{from_utf8("test", text), true}})) {
    all += (all.empty() ? "" : "|") + to_utf8(piece.text);
  }
  return all;
}

struct SplitRow {
  std::string expression, text, expected;
  SplitBehavior behavior = isolated;
};

void check(const std::vector<SplitRow>& rows) {
  for (const SplitRow& row : rows) {
    CAPTURE(row.expression);
    CAPTURE(static_cast<int>(row.behavior));
    const auto split = pre_tokenizers::split(Pattern(row.expression), row.behavior);
    CHECK(pieces(split, row.text) == row.expected);
  }
}

struct ReplaceRow {
  std::string expression, content, text, expected;
};

void check(const std::vector<ReplaceRow>& rows) {
  for (const ReplaceRow& row : rows) {
    CAPTURE(row.expression);
    const Pattern pattern(row.expression);
    const auto replace = normalizers::replace(pattern, from_utf8("test", row.content));
    CHECK(to_utf8(replace(from_utf8("test", row.text))) == row.expected);
  }
}

}  // namespace

TEST_CASE("patterns: characters of words are those of Oniguruma") {
  check(std::vector<SplitRow>{
      {R"(\w+)", "x①Ⓐ½", "x|①|Ⓐ½"},
      {R"(\W+)", "x①½", "x|①|½"},
      {R"([\w]+)", "x①Ⓐ½", "x|①|Ⓐ|½"},
      {R"([^\w]+)", "x①Ⓐ½", "x|①|Ⓐ|½"},
      {R"(\w+)", "a\u200cb\u200dc", "a|\u200c|b|\u200d|c"},
  });
}

TEST_CASE("patterns: ^ and $ match at every line") {
  check(std::vector<SplitRow>{
      {R"(^\w)", "ab\ncd", "a|b\n|c|d"},
      {R"(\w$)", "ab\ncd", "a|b|\nc|d"},
      {"^", "\na\n\n", "\n|a\n|\n"},
      {"$", "a\n\n", "a|\n|\n"},
      {R"(^\w)", "a\rb", "a|\rb"},
      {R"(\w$)", "ab\r\n", "ab\r\n"},
  });
  check(std::vector<ReplaceRow>{
      {"^", "_", "a\nb", "_a\n_b"},
      {"^", "_", "ab\n", "_ab\n"},
      {"$", "_", "ab\n", "ab_\n_"},
      {R"(\s*$)", "", "ab  \n c  ", "ab\n c"},
  });
}

TEST_CASE("patterns: empty matches are replaced, and cut") {
  check(std::vector<ReplaceRow>{
      {"a*", "_", "hello", "_h_e_l_l_o_"},
      {"a*", "_", "aabaa", "_b_"},
      {"l?", "_", "hello", "_h_e__o_"},
      {"$", "_", "ab", "ab_"},
      {"a*", "_", "", ""},
  });
  check(std::vector<SplitRow>{
      {R"(\d|)", "hello 12", "h|e|l|l|o| ", removed},
      {R"(\d|)", "hello 12", "h|e|l|l|o| |1|2", isolated},
      {R"(\d|)", "hello 12", "h|e|l|l|o| 1|2", merged_with_previous},
      {R"(\d|)", "hello 12", "h|e|l|l|o| |1|2", merged_with_next},
      {R"(\d|)", "hello 12", "h|e|l|l|o| |12", contiguous},
      {"a*", "baab", "b|b", removed},
      {"a*", "baab", "b|aa|b", isolated},
      {"a*", "baab", "baa|b", merged_with_previous},
      {"a*", "baab", "b|aab", merged_with_next},
      {"a*", "baab", "b|aa|b", contiguous},
      {"(?=b)", "abab", "a|ba|b", isolated},
  });
  const Pattern letter("a*");
  CHECK(letter.find(U"baa", 1) == Pattern::Match{1, 3});
  CHECK(letter.find(U"baa", 3) == Pattern::Match{3, 3});
  CHECK_FALSE(Pattern("a").find(U"baa", 3));
  CHECK(letter.matches(U"baa") == std::vector<Pattern::Match>{{0, 0}, {1, 3}});
}

TEST_CASE("patterns: case is that of simple case folding") {
  check(std::vector<SplitRow>{
      {"(?i:'s)", "it'ſ", "it|'ſ"},
      {"(?i:ſ)", "xsSſ", "x|s|S|ſ"},
      {"(?i:k)", "xkK\u212a", "x|k|K|\u212a"},
      {"(?i:ς)", "xςσΣ", "x|ς|σ|Σ"},
      {"(?i:Ω)", "xωΩ\u2126", "x|ω|Ω|\u2126"},
      {"(?i:ǆ)", "xǆǅǄ", "x|ǆ|ǅ|Ǆ"},
      {"(?i:ᏸ)", "xᏸᏰ", "x|ᏸ|Ᏸ"},
      {"(?i:ι)", "xιΙ\u0345", "x|ι|Ι|\u0345"},
      {"(?i:ß)", "xßẞ", "x|ß|ẞ"},
      {"(?i:i)", "xiIİı", "x|i|I|İı"},
      {R"((?i:\x{73}))", "xsSſ", "x|s|S|ſ"},
      {"(?i:[a-z])", "1Aſ\u212a", "1|A|ſ|\u212a"},
      {"(?i:[^s])", "sSſx", "sSſ|x"},
  });
  check(std::vector<ReplaceRow>{
      {R"((?i:\p{Lu}))", "", "AaBb", "ab"},
      {R"((?i:[\p{Lu}]))", "", "AaBb", ""},
      {R"((?i:[^\P{Lu}]))", "", "AaBb", "AaBb"},
  });
}

TEST_CASE("patterns: syntax of Oniguruma") {
  check(std::vector<SplitRow>{
      {"(?<=a)b", "abb", "a|b|b"},
      {"(?i:ss)", "xß", "x|ß"},
      {R"([a-z&&[^b]]+)", "abc", "a|b|c"},
      {R"(\x41\x{e9}\u00e9)", "xAéé", "x|Aéé"},
  });
  CHECK(Pattern::literal("a+(").find(U"aaa+(", 0) == Pattern::Match{2, 5});
}

TEST_CASE("normalizers: the four normal forms") {
  const auto with = [](const Normalizer& normalizer) {
    return to_utf8(normalizer(from_utf8("test", "\u1e9b\u0323 ﬁ①\uac01")));
  };
  CHECK(with(normalizers::nfc()) == "\u1e9b\u0323 ﬁ①\uac01");
  CHECK(with(normalizers::nfd()) == "\u017f\u0323\u0307 ﬁ①\u1100\u1161\u11a8");
  CHECK(with(normalizers::nfkc()) == "\u1e69 fi1\uac01");
  CHECK(with(normalizers::nfkd()) == "s\u0323\u0307 fi1\u1100\u1161\u11a8");
}

TEST_CASE("pre-tokenizers: words have joiners and enclosed letters") {
  const auto words = [](const std::string& text) {
    return pieces(pre_tokenizers::whitespace(), text);
  };
  CHECK(words("می\u200cخواهم") == "می\u200cخواهم");
  CHECK(words("👨\u200d👩\u200d👧") == "👨|\u200d|👩|\u200d|👧");
  CHECK(words("Ⓐb🄰🅐🅰") == "Ⓐb🄰🅐🅰");
  CHECK(words("x①½") == "x|①½");
}

TEST_CASE("added tokens: a single word has no joiner or enclosed letter beside it") {
  const AddedTokens added({{.content = "w", .id = 1, .single_word = true}}, false, {});
  CHECK(added.split(U"\u2460w").size() == 2);
  CHECK(added.split(U"\u200dw").size() == 1);
  CHECK(added.split(U"\u24b6w").size() == 1);
}

TEST_CASE("UTF-8: the part of a text that arrived in whole characters") {
  const std::string text = "a\u00e4\u20ac\U0001f600b";
  for (size_t n = 0; n <= text.size(); ++n) {
    const size_t whole = whole_utf8(text.substr(0, n));
    CHECK(whole <= n);
    CHECK(n - whole < 4);
    CHECK(from_utf8("test", text.substr(0, whole)).size() <= 5);
    // The byte that follows continues a character unless all were whole.
    CHECK((whole == n) == (n == text.size() || (text[n] & 0xc0) != 0x80));
  }
  CHECK(whole_utf8("ab\xff") == 3);  // no character begins with it
}
