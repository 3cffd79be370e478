#pragma once

#include <charconv>
#include <functional>
#include <string>
#include <system_error>

namespace CLI {
class App;
}

/// Parses the command line, and calls the program. Returns the exit code: what the program returns;
/// 0 after --help; 1 after wrong flags, more than 10,000 arguments or an exception, which are
/// printed, and if standard output could not be written.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& program);

/// Columns of the terminal that standard output goes to; `otherwise` if it goes elsewhere.
int terminal_columns(int otherwise);

/// Prints a line, which a terminal's width breaks between words.
void print_line(const std::string& text);

/// Whether all of `text` is a number of T, which goes to `value`.
template <class T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Checks of CLI11: nothing, or "expected ..., got ...".
std::string complaint(const std::string& expected, const std::string& got);
std::string check_path(const std::string& text);
std::string check_finite(const std::string& text);
std::string check_seed(const std::string& text);
