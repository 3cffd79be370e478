// The example listops: its expressions have the values it says, worked out here from the text
// alone, and a run that is broken off goes on as if it had not been.
#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/tensor/io/safetensors.h>

#include "../support/child_process.h"
#include "../support/compare.h"
#include "../support/temporary_folder.h"

using sash::testing::ChildProcess;
using sash::testing::file_text;
using sash::testing::is_built;
using sash::testing::program;

namespace {

using Arguments = std::vector<std::string>;

int run(const TemporaryFolder& folder, const Arguments& arguments) {
  Arguments command{program("listops")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ChildProcess(command, folder.file("log")).wait();
}

std::string output(const TemporaryFolder& folder, const Arguments& arguments) {
  CHECK(run(folder, arguments) == 0);
  return file_text(folder.file("log.out"));
}

Arguments tiny(const TemporaryFolder& folder, const std::string& steps, const std::string& name,
               const std::string& attention) {
  return {"--shortest", "5",   "--longest",     "40",
          "--dim",      "16",  "--heads",       "2",
          "--layers",   "1",   "--batch",       "8",
          "--samples",  "40",  "--tests",       "16",
          "--warmup",   "2",   "--attention",   attention,
          "--device",   "cpu", "--feedforward", "16",
          "--steps",    steps, "--save",        folder.file(name)};
}

struct Evaluation {
  int value = 0;
  size_t depth = 0;      // of lists
  size_t arguments = 0;  // of the longest list
  std::map<std::string, int> lists{};
};

// With a stack of open lists, each the number of times that each digit is in it.
Evaluation evaluate(std::istream& words) {
  struct List {
    std::string op;
    std::array<int, 10> times{};
  };
  std::vector<List> open{{"value", {}}};
  Evaluation found;
  for (std::string word; words >> word;) {
    if (word[0] == '[') {
      open.push_back({word, {}});
      found.depth = std::max(found.depth, open.size() - 1);
      ++found.lists[word];
      continue;
    }
    int value = word[0] - '0';
    if (word == "]") {
      const List list = open.back();
      open.pop_back();
      int count = 0, sum = 0;
      for (int d = 0; d < 10; ++d) count += list.times[static_cast<size_t>(d)];
      // The n-th smallest, from 0.
      const auto place = [&](int n) {
        int d = 0;
        while ((n -= list.times[static_cast<size_t>(d)]) >= 0) ++d;
        return d;
      };
      for (int d = 0; d < 10; ++d) sum += d * list.times[static_cast<size_t>(d)];
      CHECK(count >= 2);
      found.arguments = std::max(found.arguments, static_cast<size_t>(count));
      value = list.op == "[MIN"   ? place(0)
              : list.op == "[MAX" ? place(count - 1)
              : list.op == "[SM"  ? sum % 10
                                  : (place((count - 1) / 2) + place(count / 2)) / 2;
    }
    ++open.back().times[static_cast<size_t>(value)];
    found.value = value;
  }
  CHECK(open.size() == 1);
  return found;
}

}  // namespace

TEST_CASE("listops: every expression has the value that is printed") {
  if (!is_built(program("listops"))) return;
  const TemporaryFolder folder;
  const std::string text = output(folder, {"--print", "100"});
  std::istringstream lines(text);
  int count = 0;
  Evaluation all;
  for (std::string line; std::getline(lines, line); ++count) {
    std::istringstream words(line);
    int value = -1;
    words >> value;
    const auto size = std::count(line.begin(), line.end(), ' ');
    CHECK(size > 500);
    CHECK(size < 2000);
    const Evaluation found = evaluate(words);
    CHECK(found.value == value);
    all.depth = std::max(all.depth, found.depth);
    all.arguments = std::max(all.arguments, found.arguments);
    for (const auto& [op, times] : found.lists) all.lists[op] += times;
  }
  CHECK(count == 100);
  CHECK(all.depth == 9);  // with the digits, 10
  CHECK(all.arguments == 10);
  REQUIRE(all.lists.size() == 4);
  int total = 0;
  for (const auto& [op, times] : all.lists) total += times;
  for (const auto& entry : all.lists) {
    CAPTURE(entry.first);
    CHECK(std::abs(4 * entry.second - total) < total / 5);
  }
  CHECK(output(folder, {"--print", "100"}) == text);
}

TEST_CASE("listops: a resumed run ends as one without a break") {
  if (!is_built(program("listops"))) return;
  const TemporaryFolder folder;
  const auto run = [&](const std::string& steps, const std::string& name) {
    const std::string text = output(folder, tiny(folder, steps, name, "longformer:4,0"));
    return text.substr(text.find("after step "));
  };
  const std::string whole = run("8", "whole");
  run("3", "parts");
  CHECK(run("8", "parts") == whole);
  const auto tensors = [&](const std::string& name) {
    return sash::load_safetensors(folder.file(name)).tensors;
  };
  const sash::StateDict expected = tensors("whole"), found = tensors("parts");
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(expected[i].first);
    CHECK(found[i].first == expected[i].first);
    CHECK(sash::testing::all_same(found[i].second, expected[i].second));
  }
}

TEST_CASE("listops: lengths that no expression has are refused") {
  if (!is_built(program("listops"))) return;
  const TemporaryFolder folder;
  for (const auto& [shortest, longest] : std::vector<std::pair<std::string, std::string>>{
           {"50", "20"}, {"5", "3"}, {"7", "7"}, {"7", "8"}, {"1", "4"}, {"1000000", "1000005"}}) {
    for (const char* flag : {"--print", "--steps"}) {
      if (shortest.size() > 2 && flag == std::string("--steps")) continue;
      CAPTURE(longest);
      CHECK(run(folder, {flag, "1", "--shortest", shortest, "--longest", longest}) == 1);
      CHECK(file_text(folder.file("log.err")) ==
            "error: listops: expected lengths that expressions have, got more than " + shortest +
                " and fewer than " + longest + " tokens\n");
    }
  }
  CHECK(output(folder, {"--print", "1", "--shortest", "0", "--longest", "2"}).size() == 4);
  CHECK(output(folder, {"--print", "1", "--shortest", "3", "--longest", "5"}).size() > 8);
}

TEST_CASE("listops: a checkpoint of another attention is refused") {
  if (!is_built(program("listops"))) return;
  const TemporaryFolder folder;
  REQUIRE(run(folder, tiny(folder, "1", "saved", "causal")) == 0);
  CHECK(run(folder, tiny(folder, "2", "saved", "full")) == 1);
  CHECK(file_text(folder.file("log.err")) == "error: listops: expected --attention causal, as in " +
                                                 folder.file("saved") + ", got full\n");
  CHECK(run(folder, tiny(folder, "2", "saved", "causal")) == 0);
}
