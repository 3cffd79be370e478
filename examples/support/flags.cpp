#include "flags.h"

#include <cstdint>
#include <limits>

#include <sash/core/backend/device.h>
#include <CLI/CLI.hpp>

#include "program.h"

namespace {

// In place of CLI11's check, which takes a number that is too large for the largest there is.
template <class T>
CLI::Validator whole_number(T least) {
  constexpr T kMost = std::numeric_limits<T>::max();
  const auto check = [=](const std::string& text) -> std::string {
    T value{};
    if (read_number(text, value) && value >= least) return "";
    return complaint(
        "a whole number from " + std::to_string(least) + " to " + std::to_string(kMost), text);
  };
  return {check, ""};
}

template <class T>
struct Element {
  using Type = T;
};
template <class T>
struct Element<std::vector<T>> {
  using Type = T;
};

}  // namespace

struct Flags::Parser {
  CLI::App app;
  std::string device;
};

Flags::Flags(const std::string& description, const std::string& device)
    : parser_(new Parser{CLI::App(description), device}) {
  parser_->app.option_defaults()->always_capture_default();
  add("--device", parser_->device, "cpu, cuda, cuda:1, ... or auto");
}

Flags::~Flags() = default;

template <class T>
void Flags::add(const std::string& name, T& value, const std::string& help,
                const std::vector<std::string>& choices) {
  CLI::Option* const option = [&] {
    if constexpr (std::is_same_v<T, bool>)
      return parser_->app.add_flag(name, value, help);
    else
      return parser_->app.add_option(name, value, help);
  }();
  if (!name.starts_with("-")) option->required();
  if (!choices.empty()) option->check(CLI::IsMember(choices));
  using One = typename Element<T>::Type;
  if constexpr (std::is_same_v<One, double>) option->check(check_finite);
  if constexpr (std::is_integral_v<One> && !std::is_same_v<One, bool>)
    option->check(whole_number(One{0}));
}

template <class T>
void Flags::add_size(const std::string& name, T& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->check(whole_number(T{1}));
}

template void Flags::add_size(const std::string&, int&, const std::string&);
template void Flags::add_size(const std::string&, int64_t&, const std::string&);

#define SASH_FLAG(type)                                                   \
  template void Flags::add(const std::string&, type&, const std::string&, \
                           const std::vector<std::string>&)
SASH_FLAG(bool);
SASH_FLAG(int);
SASH_FLAG(int64_t);
SASH_FLAG(uint64_t);
SASH_FLAG(double);
SASH_FLAG(std::string);
SASH_FLAG(std::vector<int64_t>);
SASH_FLAG(std::vector<double>);
SASH_FLAG(std::vector<std::string>);
#undef SASH_FLAG

int Flags::run_checked(int argc, char** argv, const std::function<int()>& program) {
  return run_program(parser_->app, argc, argv, [&] {
    sash::set_default_device(sash::Device::parse(parser_->device));
    return program();
  });
}
