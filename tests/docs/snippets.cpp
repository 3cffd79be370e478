// Makes programs of the C++ blocks of a page, and compares what they print with the page.
//
//     snippets make PAGE SOURCE     writes the program of a page
//     snippets check PAGE OUTPUT    compares what it printed; 1 and the differences if they differ
//     snippets write PAGE OUTPUT    puts what it printed into the page
//
// A page's ```cpp blocks are one program, in order. Those that begin with #include, using, struct
// or a template stand outside main, others in it; of a block with `int main() {`, the lines after
// that are in it. A ```text block is what the block before it prints. Numbers with a decimal point
// may differ by 2 %, or 0.002. A ```console block holds an example of what varies.
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// Printed after each block.
constexpr char kMark = '\x1e';

struct Block {
  std::string language, text;
  size_t first = 0, line = 0;  // of its text in the page: offset, and line counted from 1
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text << std::flush)) throw std::runtime_error("cannot write " + path);
}

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  bool inside = false;
  size_t line = 0;
  for (size_t at = 0, end = 0; at < page.size(); at = end) {
    end = page.find('\n', at);
    end = end == std::string::npos ? page.size() : end + 1;
    ++line;
    const std::string text = page.substr(at, end - at);
    if (text.starts_with("```")) {
      inside = !inside;
      if (inside)
        blocks.push_back({text.substr(3, text.find_last_not_of('\n') - 2), "", end, line + 1});
    } else if (inside) {
      blocks.back().text += text;
    }
  }
  if (inside) throw std::runtime_error("a block has no end");
  return blocks;
}

bool outside_main(const std::string& text) {
  for (const char* start : {"#include", "using ", "struct ", "class ", "template "}) {
    if (text.starts_with(start)) return true;
  }
  return false;
}

std::string program(const std::string& path, const std::vector<Block>& blocks) {
  // Pages include what they use.
  std::string outside = "#include <sash/sash.h>\n\nvoid end_block();\n";
  std::string inside = "int main() {\n";
  const auto part = [&](size_t line, const std::string& text) {
    return "#line " + std::to_string(line) + " \"" + path + "\"\n" + text;
  };
  const std::string open = "int main() {\n";
  for (const Block& block : blocks) {
    if (block.language != "cpp") continue;
    if (const size_t main = block.text.find(open); main != std::string::npos) {
      const std::string before = block.text.substr(0, main);
      const size_t body = main + open.size(), close = block.text.rfind("}");
      outside += part(block.line, before);
      inside += block.text.substr(body, close - body);
    } else if (outside_main(block.text)) {
      outside += part(block.line, block.text);
    } else {
      inside += part(block.line, block.text);
    }
    inside += "end_block();\n";
  }
  return outside + inside +
         "}\n\n#include <cstdio>\n\n"
         "void end_block() { std::fputs(\"\\x1e\\n\", stdout), std::fflush(stdout); }\n";
}

/// What each C++ block printed.
std::vector<std::string> split(const std::string& output) {
  std::vector<std::string> parts;
  const std::string mark = {kMark, '\n'};
  size_t at = 0;
  for (size_t end; (end = output.find(mark, at)) != std::string::npos; at = end + mark.size()) {
    parts.push_back(output.substr(at, end - at));
  }
  return parts;
}

bool is_space(char c) { return c == ' ' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Equal but for the width of spaces and small differences of numbers with a decimal point.
bool alike(const std::string& expected, const std::string& printed) {
  size_t i = 0, j = 0;
  const auto skip = [](const std::string& text, size_t& at) {
    while (at < text.size() && is_space(text[at])) ++at;
  };
  for (skip(expected, i), skip(printed, j); i < expected.size() && j < printed.size();) {
    if (is_digit(expected[i]) && is_digit(printed[j])) {
      char *end_i = nullptr, *end_j = nullptr;
      const double a = std::strtod(expected.c_str() + i, &end_i);
      const double b = std::strtod(printed.c_str() + j, &end_j);
      const std::string word(expected, i, static_cast<size_t>(end_i - expected.c_str()) - i);
      const bool whole = word.find_first_of(".e") == std::string::npos;
      if (whole ? a != b : std::abs(a - b) > 0.002 + 0.02 * std::abs(a)) return false;
      i = static_cast<size_t>(end_i - expected.c_str());
      j = static_cast<size_t>(end_j - printed.c_str());
    } else if (is_space(expected[i]) || is_space(printed[j])) {
      if (is_space(expected[i]) != is_space(printed[j])) return false;
      skip(expected, i), skip(printed, j);
    } else if (expected[i++] != printed[j++]) {
      return false;
    }
  }
  skip(expected, i), skip(printed, j);
  return i == expected.size() && j == printed.size();
}

/// Calls see(printed text, expected block or null) for each C++ block.
template <class See>
void compare(const std::vector<Block>& blocks, const std::string& output, See&& see) {
  const std::vector<std::string> parts = split(output);
  size_t part = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].language != "cpp") continue;
    if (part == parts.size()) throw std::runtime_error("the program ended early:\n" + output);
    const bool shown = i + 1 < blocks.size() &&
                       (blocks[i + 1].language == "text" || blocks[i + 1].language == "console");
    see(blocks[i], parts[part++], shown ? &blocks[i + 1] : nullptr);
  }
}

int check(const std::string& path, const std::string& output) {
  int failures = 0;
  compare(blocks_of(read(path)), output,
          [&](const Block& code, const std::string& printed, const Block* shown) {
            if (shown && shown->language == "console") return;
            if (alike(shown ? shown->text : "", printed)) return;
            ++failures;
            std::cerr << path << ":" << code.line << ": expected\n"
                      << (shown ? shown->text : "nothing\n") << "printed\n"
                      << printed;
          });
  return failures ? 1 : 0;
}

void update(const std::string& path, const std::string& output) {
  std::string page = read(path);
  const std::vector<Block> blocks = blocks_of(page);
  long long moved = 0;
  compare(blocks, output, [&](const Block&, const std::string& printed, const Block* shown) {
    if (!shown) return;
    page.replace(static_cast<size_t>(static_cast<long long>(shown->first) + moved),
                 shown->text.size(), printed);
    moved += static_cast<long long>(printed.size()) - static_cast<long long>(shown->text.size());
  });
  write(path, page);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc == 4 ? argv[1] : "";
  if (verb == "make") {
    write(argv[3], program(argv[2], blocks_of(read(argv[2]))));
  } else if (verb == "check") {
    return check(argv[2], read(argv[3]));
  } else if (verb == "write") {
    update(argv[2], read(argv[3]));
  } else {
    throw std::runtime_error("usage: snippets make|check|write PAGE FILE");
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "snippets: " << error.what() << "\n";
  return 1;
}
