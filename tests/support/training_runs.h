#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <sash/optim/checkpoint.h>

#include "child_process.h"
#include "temporary_folder.h"

/// Runs of the example train_transformer.
namespace sash::testing {

using Arguments = std::vector<std::string>;

// Flags and their values: all of `b`, and those of `a` that `b` lacks.
inline Arguments operator+(const Arguments& a, const Arguments& b) {
  Arguments all = b;
  for (size_t i = 0; i + 1 < a.size(); i += 2) {
    if (std::find(b.begin(), b.end(), a[i]) == b.end()) all.insert(all.end(), {a[i], a[i + 1]});
  }
  return all;
}

struct Ended {
  int code;
  std::string out, err;
};

// A folder with a text, and runs of the program on a tiny model.
class Runs {
 public:
  Runs() {
    std::ofstream file(text);
    for (int i = 0; i < 500; ++i) file << "line " << i * i % 97 << (i % 3 ? "\n" : " and ");
  }

  Arguments command(const Arguments& arguments) const {
    Arguments all{program("train_transformer")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  Ended run(const Arguments& arguments, const ChildOptions& options = {}) const {
    ChildProcess child(command(arguments), path("log"), options);
    const int code = child.wait();
    return {code, child.out(), child.err()};
  }
  // Trains `steps` steps, from the start.
  Arguments fresh(int64_t steps) const {
    return tiny + Arguments{"--text", text, "--steps", std::to_string(steps)};
  }
  std::string path(const std::string& name) const { return folder_.file(name); }
  int64_t files() const { return folder_.count(); }

 private:
  TemporaryFolder folder_;

 public:
  const std::string text = path("text"), saved = path("saved"), metrics = path("metrics");
  const Arguments tiny{"--dim",   "8", "--heads",    "2", "--layers",     "1", "--context", "16",
                       "--batch", "2", "--generate", "0", "--save-every", "0"};
};

inline int64_t step_of(const std::string& checkpoint) {
  return optim::checkpoint_info(checkpoint).step;
}

inline std::vector<nlohmann::json> lines_of(const std::string& metrics) {
  std::ifstream file(metrics);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

inline bool contains(const std::string& text, const std::string& part) {
  INFO(text, "\nwithout: ", part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace sash::testing
