// Every name of sash in docs/from_pytorch.md is declared in a public header.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// An identifier, with what stands around it.
struct Word {
  std::string text;
  std::string before;  ///< the identifier before it, but for SASH_API
  char previous = 0;   ///< the character before it
  char next = 0;       ///< the first character behind it that is no space
};

std::vector<Word> words_of(const std::string& text) {
  std::vector<Word> words;
  std::string before;
  for (size_t at = 0; at < text.size();) {
    if (!in_word(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && in_word(text[end])) ++end;
    size_t behind = end;
    while (behind < text.size() && std::isspace(static_cast<unsigned char>(text[behind]))) ++behind;
    const std::string word = text.substr(at, end - at);
    if (!std::isdigit(static_cast<unsigned char>(word[0]))) {
      words.push_back(
          {word, before, at > 0 ? text[at - 1] : '\0', behind < text.size() ? text[behind] : '\0'});
      if (word != "SASH_API") before = word;
    }
    at = end;
  }
  return words;
}

/// Without what stands between `open` and `close`, and them.
std::string without(std::string text, const std::string& open, const std::string& close) {
  for (size_t at; (at = text.find(open)) != std::string::npos;) {
    const size_t end = text.find(close, at + open.size());
    if (end == std::string::npos) break;
    text.erase(at, end + (close == "\n" ? 0 : close.size()) - at);
  }
  return text;
}

struct Names {
  std::set<std::string> all, functions_and_types;
};

Names declared() {
  Names names;
  for (const char* folder : {"core", "tensor", "ops", "nn", "optim"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(SASH_SOURCE_DIR) / folder)) {
      const fs::path& path = entry.path();
      if (path.extension() != ".h" || path.parent_path().filename() == "kernels") continue;
      for (const Word& word : words_of(without(read(path), "//", "\n"))) {
        names.all.insert(word.text);
        const bool is_type =
            word.before == "struct" || word.before == "class" || word.before == "using";
        if (is_type || word.next == '(') names.functions_and_types.insert(word.text);
      }
    }
  }
  return names;
}

/// The code in the last column of the tables, without text in quotes.
std::vector<std::string> right_column(const std::string& page) {
  std::vector<std::string> codes;
  size_t begin = 0;
  for (size_t end; (end = page.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string line = page.substr(begin, end - begin);
    if (!line.starts_with("| ")) continue;
    line = line.substr(line.find(" | ") + 3);
    for (size_t open; (open = line.find('`')) != std::string::npos;) {
      const size_t close = line.find('`', open + 1);
      REQUIRE(close != std::string::npos);
      codes.push_back(without(line.substr(open + 1, close - open - 1), "\"", "\""));
      line = line.substr(close + 1);
    }
  }
  return codes;
}

/// The names in `code` that are not declared: what is called or made must be a function or a type,
/// a word alone too; members and options must be some name. Other words are variables.
std::vector<std::string> unknown(const std::string& code, const Names& names) {
  const std::set<std::string> foreign{
      "a", "b", "x", "cout", "Net", "Block", "ema", "fc", "train_transformer"};
  if (code.find('/') != std::string::npos) return {};  // a file
  std::vector<std::string> missing;
  const std::vector<Word> words = words_of(code);
  for (const Word& word : words) {
    const bool used = word.next == '(' || word.next == '{' || word.next == '<';
    const bool alone = word.text == code;
    const bool member = word.previous == '.' || word.previous == ':';
    if (foreign.count(word.text)) continue;
    if ((used || alone) ? !names.functions_and_types.count(word.text)
                        : member && !names.all.count(word.text)) {
      missing.push_back(word.text);
    }
  }
  return missing;
}

}  // namespace

TEST_CASE("the page of PyTorch's words names functions, types and options that exist") {
  const Names names = declared();
  const std::vector<std::string> codes =
      right_column(read(SASH_SOURCE_DIR "/docs/from_pytorch.md"));
  CHECK(codes.size() > 200);
  for (const std::string& code : codes) {
    for (const std::string& name : unknown(code, names)) FAIL_CHECK(name << " in `" << code << "`");
  }
  // The check finds what is not there.
  for (const char* wrong :
       {"no_such_op(x)", "nn::NoSuchModule()", "optim::Lion(p, {.no_option = 1})", "x.no_member()",
        "no_such_name", "NoSuchType{.lr = 1}"}) {
    CHECK(unknown(wrong, names).size() == 1);
  }
}
