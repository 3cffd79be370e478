// The example train_transformer where it cannot do what its flags ask for.

#include <filesystem>

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
  if (!is_built(SASH_TRAIN_TRANSFORMER)) return;
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
  if (!is_built(SASH_TRAIN_TRANSFORMER)) return;
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
  if (!is_built(SASH_TRAIN_TRANSFORMER)) return;
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
