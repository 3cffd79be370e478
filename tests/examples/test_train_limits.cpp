// The example train_transformer where it cannot do what its flags ask for.

#include <filesystem>
#include <fstream>
#include <utility>

#include "../support/training_runs.h"

namespace fs = std::filesystem;
using namespace sash::testing;

namespace {

class CurrentPath {
 public:
  explicit CurrentPath(const std::string& path) { fs::current_path(path); }
  ~CurrentPath() { fs::current_path(before_); }
  CurrentPath(const CurrentPath&) = delete;
  CurrentPath& operator=(const CurrentPath&) = delete;

 private:
  const fs::path before_ = fs::current_path();
};

}  // namespace

TEST_CASE("train_transformer: flags that ask for steps which are made already are an error") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(6) + Arguments{"--save", runs.saved}).code == 0);
  const std::string before = file_text(runs.saved);
  const Arguments on{"--resume", runs.saved, "--generate", "0"}, text{"--text", runs.text};
  const std::string needs = "expected --steps above 6, the step of " + runs.saved;
  for (const auto& [asked, expected] :
       {std::pair{Arguments{"--steps", "5"}, needs + ", got 5"},
        {Arguments{"--steps", "6"}, needs + ", got 6"},
        {text + Arguments{"--save", runs.path("other")}, needs + ", with --save, got 6"},
        {text + Arguments{"--metrics", runs.metrics}, needs + ", with --metrics, got 6"},
        {text + Arguments{"--lr", "0.1"}, needs + ", with --lr, got 6"}}) {
    const std::string& complaint = expected;
    CAPTURE(complaint);
    const Ended ended = runs.run(on + asked);
    CHECK(ended.code == 1);
    contains(ended.err, complaint);
  }
  CHECK(!fs::exists(runs.path("other")));
  CHECK(!fs::exists(runs.metrics));
  CHECK(file_text(runs.saved) == before);
  // A text alone is validated.
  const Ended ended = runs.run(on + text);
  CHECK(ended.code == 0);
  contains(ended.out, runs.saved + " is at step 6 of 6\nno training: that needs more --steps\n");
  contains(ended.out, "validation loss");
}

TEST_CASE("train_transformer: a full disk costs the trace, and no more") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string trace = runs.path("trace");
  std::ofstream(trace) << "old";
  const Ended ended = runs.run(runs.fresh(30) + Arguments{"--profile", trace, "--generate", "5"},
                               {.most_file_bytes = 16384});
  CHECK(ended.code == 1);
  contains(ended.err,
           "warning: Profiler.write_trace: cannot write '" + trace + "': File too large");
  contains(ended.err, "error: " + trace + " lacks the trace");
  contains(ended.out, "linear_forward");
  contains(ended.out, "step 30/30");
  contains(ended.out, "----\n");
  CHECK(file_text(trace) == "old");
}

TEST_CASE("train_transformer: without --save, it says whether a stopped run would be kept") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  {
    const CurrentPath here(fs::path(runs.text).parent_path().string());
    contains(runs.run(runs.fresh(1)).out,
             "no --save: a checkpoint is written only if a signal stops the training\n");
  }
  const CurrentPath here("/proc");  // where nobody can make a file
  const Ended ended = runs.run(runs.fresh(1));
  CHECK(ended.code == 0);
  contains(ended.out,
           "no --save: nothing is kept, not even if a signal stops the training: "
           "train_transformer: cannot create 'train_transformer.safetensors'");
}

TEST_CASE("train_transformer: of another text, the best is counted anew") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string other = runs.path("other"), best = runs.saved + "/best.safetensors";
  {
    std::ofstream file(other);  // the same characters, and harder to foresee
    std::string text = file_text(runs.text);
    for (size_t i = text.size(); i > 1; --i) std::swap(text[i - 1], text[i * 7919 % i]);
    for (size_t i = 0; i < text.size(); ++i) file << text[i * 4801 % text.size()];
  }
  REQUIRE(runs.run(runs.fresh(60) + Arguments{"--save", runs.saved, "--keep", "1"}).code == 0);
  CHECK(step_of(best) == 60);
  const Ended ended = runs.run({"--resume", runs.saved, "--text", other, "--steps", "61", "--lr",
                                "1e-9", "--generate", "0"});
  REQUIRE(ended.code == 0);
  contains(ended.out, "step-00000060.safetensors was trained on; the best is counted anew\n");
  CHECK(step_of(best) == 61);
  // A run on the same text keeps its best.
  REQUIRE(
      runs.run({"--resume", runs.saved, "--steps", "62", "--lr", "1000", "--generate", "0"}).code ==
      0);
  CHECK(step_of(best) == 61);
}

TEST_CASE("train_transformer: a checkpoint of a folder is not replaced by a run that goes on") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(4) + Arguments{"--save", runs.saved, "--keep", "1"}).code == 0);
  const std::string best = runs.saved + "/best.safetensors";
  const Arguments on{"--steps", "6", "--generate", "0"};
  Ended ended = runs.run(on + Arguments{"--resume", best});
  CHECK(ended.code == 1);
  contains(ended.err, "expected --save with --resume of a file that --keep made, got " + best);
  CHECK(step_of(best) == 4);
  ended = runs.run(on + Arguments{"--resume", runs.saved, "--keep", "0"});
  CHECK(ended.code == 1);
  contains(ended.err, "expected --keep 1 or more with a folder, " + runs.saved + ", got 0");
  REQUIRE(runs.run(on + Arguments{"--resume", best, "--save", runs.path("other")}).code == 0);
  CHECK(step_of(runs.path("other")) == 6);
  // Another run's folder.
  ended = runs.run(on +
                   Arguments{"--resume", runs.path("other"), "--steps", "8", "--save", runs.saved});
  CHECK(ended.code == 1);
  contains(ended.err, "expected a save folder without checkpoints of another run, got");
}
