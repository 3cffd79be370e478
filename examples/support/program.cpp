#include "program.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace {

constexpr int kMostArguments = 10000;
constexpr size_t kLongestWord = 60;  // that is printed whole, and compared with flags

int columns_of(std::FILE* terminal) {
  winsize size{};
  if (::ioctl(::fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  int columns = 0;
  const char* const text = std::getenv("COLUMNS");
  return text && read_number(text, columns) && columns > 0 ? columns : 80;
}

// Breaks a line between words. In a row of two columns, what follows stands below the second one.
std::string wrapped(std::string line, size_t columns) {
  const size_t start = line.find_first_not_of(' ');
  const size_t gap = line.find("  ", start);
  size_t indent = start == line.npos || gap == line.npos ? start : line.find_first_not_of(' ', gap);
  if (indent == line.npos || indent + 20 > columns) indent = 4;
  std::string text;
  while (line.size() > columns) {
    size_t end = line.rfind(' ', columns);
    if (end == line.npos || end <= indent) end = line.find(' ', std::max(columns, indent + 1));
    if (end == line.npos) break;
    text += line.substr(0, end) + '\n';
    line = std::string(indent, ' ') + line.substr(end + 1);
  }
  return text + line + '\n';
}

void print_help(const CLI::App& app) {
  std::istringstream help(app.help());
  const auto columns = static_cast<size_t>(std::max(columns_of(stdout), 40));
  for (std::string line; std::getline(help, line);) {
    std::fputs(wrapped(line, columns).c_str(), stdout);
  }
}

// Edits of a letter that lead from one word to the other (Levenshtein, 1965).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t kept = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({kept, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The flag or subcommand that a word was meant to be; empty if more than half of its letters, or
// more than four, differ.
std::string nearest(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  std::string best;
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  size_t least = std::min<size_t>(letters / 2, 4) + 1;
  for (const std::string& name : names) {
    const size_t edits = distance(word, name);
    if (edits < least) best = name;
    least = std::min(least, edits);
  }
  return best;
}

int refuse_extras(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  const CLI::App& parsed = chosen.empty() ? app : *chosen[0];
  for (const std::string& word : app.remaining(true)) {
    if (!word.starts_with("-") && !chosen.empty()) continue;
    std::string name = word.substr(0, word.find('='));
    const bool is_long = name.size() > kLongestWord;
    const std::string meant = is_long ? "" : nearest(parsed, name);
    if (is_long) name.replace(kLongestWord, name.npos, "...");
    std::fprintf(stderr, "error: there is no %s%s\nRun with --help for more information.\n",
                 name.c_str(), meant.empty() ? "" : ("; did you mean " + meant + "?").c_str());
    return 1;
  }
  return -1;
}

int parse_and_run(CLI::App& app, int argc, char** argv, const std::function<int()>& program) {
  // Each argument costs CLI11 several strings, and a wrong one is printed with all after it.
  if (argc - 1 > kMostArguments) {
    std::fprintf(stderr, "error: expected at most %d arguments, got %d\n", kMostArguments,
                 argc - 1);
    return 1;
  }
  try {
    app.parse(argc, argv);
    return program();
  } catch (const CLI::CallForHelp&) {
    print_help(app);
    return 0;
  } catch (const CLI::ExtrasError& error) {
    return refuse_extras(app) == 1 ? 1 : (app.exit(error), 1);
  } catch (const CLI::RequiredError& error) {  // also of a command that is misspelt
    return refuse_extras(app) == 1 ? 1 : (app.exit(error), 1);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int terminal_columns(int otherwise) {
  return ::isatty(::fileno(stdout)) != 0 ? std::max(columns_of(stdout), 20) : otherwise;
}

void print_line(const std::string& text) {
  const int columns = terminal_columns(0);
  const std::string line = columns > 0 ? wrapped(text, static_cast<size_t>(columns)) : text + '\n';
  std::fputs(line.c_str(), stdout);
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& program) {
  const int exit_code = parse_and_run(app, argc, argv, program);
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || exit_code != 0) return exit_code;
  std::fprintf(stderr, "error: cannot write to standard output\n");
  return 1;
}

std::string complaint(const std::string& expected, const std::string& got) {
  return "expected " + expected + ", got " + (got.empty() ? "nothing" : got);
}

std::string check_path(const std::string& text) {
  return text.empty() ? complaint("the path of a file", text) : "";
}

std::string check_finite(const std::string& text) {
  double value = 0;
  return read_number(text, value) && std::isfinite(value) ? "" : complaint("a finite number", text);
}

std::string check_seed(const std::string& text) {
  uint64_t value = 0;
  return read_number(text, value) ? "" : complaint("a whole number from 0 to 2^64 - 1", text);
}
