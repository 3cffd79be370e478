// Every name of sash in docs/from_pytorch.md is declared in a public header, and many ops on
// tensors compile as they stand there.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <sash/sash.h>

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

// Runs what the page has in its right column.
#define ON_PAGE(...)                                                             \
  do {                                                                           \
    CHECK_MESSAGE(codes.count(#__VA_ARGS__) == 1, #__VA_ARGS__ " is not there"); \
    (void)(__VA_ARGS__);                                                         \
  } while (false)

TEST_CASE("the ops on the page of PyTorch's words compile as they stand there") {
  using namespace sash;
  const std::vector<std::string> column =
      right_column(read(SASH_SOURCE_DIR "/docs/from_pytorch.md"));
  const std::set<std::string> codes(column.begin(), column.end());
  const Tensor index = tensor({2, 0}), a = full({2, 2}, 3), b = full({2, 2}, 2), c = a > b;
  const Tensor y = ones({2, 6, 4});
  Tensor x = rand({3, 6, 4});
  const Tensor mask = x > 0.5, m = mask;
  const int64_t n = 5, k = 2;
  const double p = 0.5, v = 1;
  ON_PAGE(tensor({{1, 2}, {3, 4}}));
  ON_PAGE(empty({2, 3}));
  ON_PAGE(full({2, 3}, 0.5));
  ON_PAGE(zeros_like(x));
  ON_PAGE(full_like(x, 2));
  ON_PAGE(rand_like(x));
  ON_PAGE(randn_like(x));
  ON_PAGE(arange(0, 10, 2));
  ON_PAGE(arange(n));
  ON_PAGE(linspace(0, 1, n));
  ON_PAGE(eye(n));
  ON_PAGE(randperm(n));
  ON_PAGE(rand({2, 3}));
  ON_PAGE(randint(0, 10, {2, 3}));
  ON_PAGE(x.to(DType::float16));
  ON_PAGE(x.to_vector<float>());
  ON_PAGE(x.data<const float>());
  ON_PAGE(x.is_contiguous());
  ON_PAGE(x[0]);
  ON_PAGE(x.slice(1, 1, 5));
  ON_PAGE(x.slice(1, 0, {}, 2));
  ON_PAGE(x[{kEllipsis, 0}]);
  ON_PAGE(x[{0, Slice(1, 5), kNewAxis}]);
  ON_PAGE(x[mask]);
  ON_PAGE(x.index_put_({index}, y));
  ON_PAGE(x.narrow(1, 2, 3));
  ON_PAGE(x.select(1, 0));
  ON_PAGE(x.flatten(1));
  ON_PAGE(x.permute(0, 2, 1));
  ON_PAGE(x.transpose(1, 2));
  ON_PAGE(x.mT());
  ON_PAGE(x.unsqueeze(1));
  ON_PAGE(cat({a, b}, 0));
  ON_PAGE(stack({a, b}, 0));
  ON_PAGE(split(x, 3, 0));
  ON_PAGE(chunk(x, 3, 0));
  ON_PAGE(x.movedim(1, -1));
  ON_PAGE(unbind(x, 0));
  ON_PAGE(repeat_interleave(x, 2, 1));
  ON_PAGE(flip(x, {0}));
  ON_PAGE(roll(x, 1, 0));
  ON_PAGE(pad(x, {1, 1}));
  ON_PAGE(x.unfold(1, 3, 1));
  ON_PAGE(index_select(x, 0, index));
  ON_PAGE(nonzero(x));
  ON_PAGE(one_hot(index, n));
  ON_PAGE(where(c, a, b));
  ON_PAGE(masked_fill(x, m, v));
  ON_PAGE(eq(a, b));
  ON_PAGE(exp(x));
  ON_PAGE(sin(x));
  ON_PAGE(softplus(x));
  ON_PAGE(log2(x));
  ON_PAGE(leaky_relu(x, 0.01));
  ON_PAGE(elu(x));
  ON_PAGE(atan2(a, b));
  ON_PAGE(isinf(x));
  ON_PAGE(isclose(a, b));
  ON_PAGE(allclose(a, b, {.rtol = 1e-3}));
  ON_PAGE(cumprod(x, 1));
  ON_PAGE(median(x));
  ON_PAGE(median(x, 1));
  ON_PAGE(quantile(x, 0.9, {.axis = 1}));
  ON_PAGE(quantile(x, {0.1, 0.9}));
  ON_PAGE(normalize(x, {.p = 2, .axis = 1}));
  ON_PAGE(masked_select(x, m));
  ON_PAGE(cdist(a, b, 1));
  ON_PAGE(abs(x));
  ON_PAGE(ceil(x));
  ON_PAGE(round(x));
  ON_PAGE(pow(x, 2));
  ON_PAGE(maximum(a, b));
  ON_PAGE(clamp(x, 0, 1));
  ON_PAGE(remainder(a, b));
  ON_PAGE(isnan(x));
  ON_PAGE(isfinite(x));
  ON_PAGE(result_type(a, b));
  ON_PAGE(x.sum());
  ON_PAGE(x.sum({1}, true));
  ON_PAGE(x.mean({0, 1}));
  ON_PAGE(amax(x, {1}));
  ON_PAGE(amin(x, {1}));
  ON_PAGE(var(x, {1}));
  ON_PAGE(argmax(x, 1));
  ON_PAGE(argmin(x, 1));
  ON_PAGE(cumsum(x, 1));
  ON_PAGE(logsumexp(x, {1}));
  ON_PAGE(max(x, 1));
  ON_PAGE(min(x, 1));
  ON_PAGE(x.std({1}));
  ON_PAGE(norm(x));
  ON_PAGE(prod(x, {1}));
  ON_PAGE(any(x));
  ON_PAGE(all(x));
  ON_PAGE(topk(x, k));
  ON_PAGE(sort(x, 1));
  ON_PAGE(argsort(x, 1));
  ON_PAGE(softmax(x, -1));
  ON_PAGE(log_softmax(x, -1));
  ON_PAGE(dropout(x, p));
  ON_PAGE(glu(x));
  ON_PAGE(matmul(a, b));
  ON_PAGE(to_string(x));
  CHECK(argmax(x).shape() == Shape{3, 6});  // along the last axis
  CHECK(argmin(x).shape() == Shape{3, 6});
}

#undef ON_PAGE
