// Tokens that look like those of bytes: only <0x00> to <0xFF> stand for bytes.
#include <doctest/doctest.h>

#include <string>

#include <sash/nn/text/token_decoder.h>
#include <sash/nn/text/token_model.h>

using namespace sash;

namespace {

enum class ByteToken {
  plain,
  lower_case,
  minus_1,
  plus_1,
  space,
  one_digit,
  three_digits,
  no_digits,
  no_hex_digit,
  no_end,
  another_start,
  nul,
};

struct ByteTokenRow {
  ByteToken kind;
  std::string token, text;
};

}  // namespace

TEST_CASE("byte tokens: every malformed one is text") {
  const std::string nul("<0x\0A>", 6);
  const ByteTokenRow rows[] = {
      {ByteToken::plain, "<0x41>", "A"},
      {ByteToken::lower_case, "<0x4a>", "J"},
      {ByteToken::minus_1, "<0x-1>", "<0x-1>"},
      {ByteToken::plus_1, "<0x+1>", "<0x+1>"},
      {ByteToken::space, "<0x 1>", "<0x 1>"},
      {ByteToken::one_digit, "<0x1>", "<0x1>"},
      {ByteToken::three_digits, "<0x100>", "<0x100>"},
      {ByteToken::no_digits, "<0x>", "<0x>"},
      {ByteToken::no_hex_digit, "<0xG1>", "<0xG1>"},
      {ByteToken::no_end, "<0x41", "<0x41"},
      {ByteToken::another_start, "[0x41]", "[0x41]"},
      {ByteToken::nul, nul, nul},
  };
  for (const auto& [kind, token, text] : rows) {
    CAPTURE(static_cast<int>(kind));
    CHECK(text::token_decoders::byte_fallback()({token}) == std::vector<std::string>{text});
  }
  const text::Vocabulary vocabulary(std::vector<std::string>{"<0x-1>", "<0x4a>", "<0x41>"});
  CHECK(vocabulary.bytes("A") == std::vector<int64_t>{2});
  CHECK_FALSE(vocabulary.bytes("J"));
}
