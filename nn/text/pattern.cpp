#include "pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <climits>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr size_t kMaxSteps = 4'000'000;  // back in one text; more in long texts
constexpr size_t kFreeSteps = 1000;      // of a search
constexpr unsigned kMaxPlaces = 4'000'000;

const UChar* begin_of(std::string_view text) { return reinterpret_cast<const UChar*>(text.data()); }
const UChar* end_of(std::string_view text) { return begin_of(text) + text.size(); }

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  UChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size =
      info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
}

/// Oniguruma's own syntax without calls of functions of the program, such as (?{...}) and (*FAIL).
OnigSyntaxType* syntax_without_calls() {
  static OnigSyntaxType syntax = [] {
    OnigSyntaxType copy{};
    onig_copy_syntax(&copy, ONIG_SYNTAX_ONIGURUMA);
    const unsigned calls =
        ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME;
    onig_set_syntax_op2(&copy, onig_get_syntax_op2(&copy) & ~calls);
    return copy;
  }();
  return &syntax;
}

}  // namespace

struct Pattern::Program {
  Program(std::string_view expression, OnigSyntaxType* syntax) {
    static const int ready = [] {
      OnigEncoding used = ONIG_ENCODING_UTF8;
      return onig_initialize(&used, 1);
    }();
    from_utf8("Pattern", expression);  // checks it
    OnigErrorInfo info{};
    const int code = ready != ONIG_NORMAL
                         ? ready
                         : onig_new(&regex, begin_of(expression), end_of(expression),
                                    ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, syntax, &info);
    if (code != ONIG_NORMAL) {
      throw FormatError("Pattern", "a regular expression",
                        message_of(code, &info) + " in " + in_quotes(expression));
    }
  }
  ~Program() { onig_free(regex); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  OnigRegex regex = nullptr;
};

// Searches one text from its begin to its end. Oniguruma is fastest with UTF-8.
class Pattern::Search {
 public:
  Search(const Program& program, std::u32string_view text, size_t start)
      : regex_(program.regex),
        text_(to_utf8(text)),
        byte_(start == 0 ? 0 : to_utf8(text.substr(0, start)).size()),
        character_(start),
        steps_(kMaxSteps + 100 * text.size()),
        memory_(memory_of_thread()) {
    onig_initialize_match_param(memory_.limits);
    onig_set_retry_limit_in_match_of_match_param(memory_.limits, ULONG_MAX);  // see search()
    onig_set_match_stack_limit_size_of_match_param(memory_.limits, kMaxPlaces);
  }

  // The next match, from the end of the last one on.
  std::optional<Match> next() {
    if (byte_ > text_.size()) return std::nullopt;
    const int code = search();
    if (code == ONIG_MISMATCH) return std::nullopt;
    if (code < 0) throw NotImplemented("Pattern", "a search that ends with " + message_of(code));
    advance(static_cast<size_t>(memory_.region.beg[0]));
    const size_t first = character_;
    advance(static_cast<size_t>(memory_.region.end[0]));
    return Match{first, character_};
  }

  // Goes on one character further.
  void skip() {
    size_t next = byte_ + 1;
    while (next < text_.size() && !begins_character(text_[next])) ++next;
    byte_ = next;
    ++character_;
  }

 private:
  // Searches that need more than the free steps share `steps_`, so that many slow ones end, too.
  int search() {
    const UChar *const begin = begin_of(text_), *const end = end_of(text_);
    for (size_t steps = kFreeSteps;; steps *= 8) {
      const bool free = steps == kFreeSteps;
      const size_t most = free ? steps : std::min(steps, kFreeSteps + steps_);
      onig_set_retry_limit_in_search_of_match_param(memory_.limits, most);
      const int code = onig_search_with_param(regex_, begin, end, begin + byte_, end,
                                              &memory_.region, ONIG_OPTION_NONE, memory_.limits);
      const bool over = code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
      if (!free) steps_ -= std::min(steps_, over ? most : most / 2);
      if (!over || (!free && steps_ == 0)) return code;
    }
  }

  static bool begins_character(char byte) { return (byte & 0xc0) != 0x80; }

  void advance(size_t byte) {
    for (; byte_ < byte; ++byte_) character_ += begins_character(text_[byte_]);
  }

  // Most texts are short words, so the searches of a thread share this.
  struct Memory {
    Memory() {
      if (!limits) throw std::bad_alloc();
    }
    ~Memory() {
      onig_free_match_param(limits);
      onig_region_free(&region, 0);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    OnigMatchParam* limits = onig_new_match_param();
    OnigRegion region{};
  };

  static Memory& memory_of_thread() {
    static thread_local Memory memory;
    return memory;
  }

  OnigRegex regex_;
  std::string text_;
  size_t byte_, character_;  // the same place
  size_t steps_;             // that are left
  Memory& memory_;
};

Pattern::Pattern(std::string_view expression)
    : program_(std::make_shared<const Program>(expression, syntax_without_calls())) {}

Pattern Pattern::literal(std::string_view text) {
  return Pattern(std::make_shared<const Program>(text, ONIG_SYNTAX_ASIS));
}

void check_growth(size_t before, size_t after) {
  if (after <= (size_t{1} << 20) + 64 * before) return;
  throw NotImplemented("Tokenizer", "a text of " + std::to_string(before) +
                                        " characters that a tokenizer makes too long");
}

std::optional<Pattern::Match> Pattern::find(std::u32string_view text, size_t start) const {
  return start > text.size() ? std::nullopt : Search(*program_, text, start).next();
}

std::vector<Pattern::Match> Pattern::matches(std::u32string_view text) const {
  std::vector<Match> all;
  if (text.empty()) return all;
  Search search(*program_, text, 0);
  while (const auto match = search.next()) {
    const auto [begin, end] = *match;
    if (begin != end || all.empty() || all.back().second != end) {
      all.push_back(*match);
    } else {
      search.skip();
    }
  }
  return all;
}

std::u32string Pattern::replace(std::u32string_view text, std::u32string_view content) const {
  std::u32string result;
  size_t done = 0;
  for (const auto& [begin, end] : matches(text)) {
    result += text.substr(done, begin - done);
    result += content;
    check_growth(text.size(), result.size());
    done = end;
  }
  result += text.substr(done);
  return result;
}

}  // namespace sash::text
