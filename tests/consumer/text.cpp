#include <sash/nn/text/normalizer.h>
#include <sash/nn/text/pre_tokenizer.h>

// Splits a text through the installed library sash_text.
int main() {
  const auto split = sash::text::pre_tokenizers::byte_level(false, true);
  const auto nfkc = sash::text::normalizers::nfkc();
  return split({{U"two words", true}}).size() == 2 && nfkc(U"\ufb01") == U"fi" ? 0 : 1;
}
