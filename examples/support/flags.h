#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

/// The command line of an example or a benchmark: flags with their defaults in --help, among them
/// --device. A front of CLI11, whose headers take longer to compile than an example.
///
///     int steps = 500;
///     Flags flags("Trains a model.");
///     flags.add("--steps", steps, "Batches of 32");
///     return flags.run(argc, argv, [&] { train(steps); });
class Flags {
 public:
  explicit Flags(const std::string& description, const std::string& device = "auto");
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// A flag "--name", or an argument "name" that must be there. Takes int, int64_t, uint64_t,
  /// double, std::string, vectors of int64_t, double or std::string and, for flags without a value,
  /// bool; one of `choices`, if there are some. Whole numbers are at least 0, others finite.
  template <class T>
  void add(const std::string& name, T& value, const std::string& help = "",
           const std::vector<std::string>& choices = {});
  /// The same for a whole number of at least 1.
  template <class T>
  void add_size(const std::string& name, T& value, const std::string& help = "");

  /// Reads the command line, makes --device the default device, and calls the program. Returns the
  /// exit code: what the program returns, if it does; 1 after an error, which is printed.
  template <class Program>
  int run(int argc, char** argv, Program program) {
    return run_checked(argc, argv, [&] {
      if constexpr (std::is_void_v<decltype(program())>) {
        program();
        return 0;
      } else {
        return program();
      }
    });
  }

 private:
  int run_checked(int argc, char** argv, const std::function<int()>& program);

  struct Parser;
  std::unique_ptr<Parser> parser_;
};
