// The example train_transformer from end to end: wrong arguments, saving and resuming, metrics, and
// generating text from a checkpoint.

#include <filesystem>

#include "../support/training_runs.h"

namespace fs = std::filesystem;
using namespace sash::testing;

TEST_CASE("train_transformer: wrong arguments are refused before the first step") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(3) + Arguments{"--save", runs.saved}).code == 0);
  const std::string before = file_text(runs.saved);
  fs::create_directory(runs.path("folder"));
  const int64_t files = runs.files();
  const Arguments fresh = runs.fresh(1000000);
  const Arguments resume{"--resume", runs.saved, "--steps", "1000000"};
  const std::string unwritable = runs.path("absent/model");
  const std::vector<std::pair<Arguments, std::string>> cases{
      {{"--lr", "-1"}, "--lr: expected a number above 0, got -1"},
      {{"--lr", "nan"}, "--lr: expected a number above 0, got nan"},
      {{"--temperature", "0"}, "--temperature: expected a number above 0, got 0"},
      {{"--dropout", "nan"}, "--dropout: expected a number from 0 to 1, got nan"},
      {{"--dim", "0"}, "--dim: expected a whole number from 1 to 16777216, got 0"},
      {{"--steps", "1e3"}, "--steps: expected a whole number from 0 to 1099511627776, got 1e3"},
      {{"--seed", "-1"}, "--seed: expected a whole number from 0 to 2^64 - 1, got -1"},
      {{"--attention", "windows:1"}, "attention_mask: expected"},
      {{"--attention", "clustered:0"}, "expected a number of at least 1 as clusters"},
      {fresh + Arguments{"--attention", "linear"}, "expected causal attention"},
      {fresh + Arguments{"--text", runs.path("absent")}, "absent"},
      {fresh + Arguments{"--device", "gpu"}, "Device::parse: expected"},
      {fresh + Arguments{"--heads", "3"}, "dim divisible by heads, or a head_dim, got 8 and 3"},
      {fresh + Arguments{"--generate", "5", "--prompt", "Zebra"},
       "expected a --prompt of characters that the model knows, got 'Z'"},
      {fresh + Arguments{"--generate", "5", "--prompt", ""}, "expected a --prompt of"},
      {fresh + Arguments{"--context", "600"},
       "expected --context shorter than the held-out text of"},
      {fresh + Arguments{"--save", unwritable}, "cannot create '" + unwritable + "'"},
      {fresh + Arguments{"--save", runs.path("folder")}, "it is no regular file"},
      {fresh + Arguments{"--save", "/dev/null"}, "it is no regular file"},
      {fresh + Arguments{"--save", runs.text}, "--save and --text to be different files"},
      {fresh + Arguments{"--metrics", runs.text}, "--metrics and --text to be different files"},
      {fresh + Arguments{"--metrics", unwritable}, "cannot write the metrics to"},
      {resume + Arguments{"--metrics", runs.saved}, "--metrics and --resume to be different"},
      {resume + Arguments{"--dim", "16"},
       "expected --dim 8, as in " + runs.saved + ", or none, got 16"},
      {resume + Arguments{"--layers", "2"}, "expected --layers 1, as in"},
      {resume + Arguments{"--attention", "causal_window:4"},
       "expected --attention causal, as in " + runs.saved + ", or none, got causal_window:4"},
      {resume + Arguments{"--precision", "bf16"}, "expected --precision float32, as in"},
      {{"--precision", "half"}, "--precision: half not in"},
      {{"--resume", runs.saved, "--save", runs.path("copy")},
       "expected --steps or --text with --resume and --save, got neither"},
      {{"--resume", runs.saved, "--lr", "0.1"},
       "expected --steps or --text with --resume and --lr, got neither"},
      {{"--resume", runs.saved, "--dropout", "0.1"}, "with --resume and --dropout, got neither"},
      {{"--resume", runs.text}, "'" + runs.text + "' is text"}};
  for (const auto& [arguments, expected] : cases) {
    const std::string& complaint = expected;
    CAPTURE(complaint);
    const Ended ended = runs.run(arguments);
    CHECK(ended.code == 1);
    contains(ended.err + ended.out, complaint);
    CHECK(ended.err.size() + ended.out.size() < 1000);
    CHECK(ended.out.find("step 1/") == std::string::npos);
  }
  CHECK(file_text(runs.saved) == before);
  CHECK(runs.files() == files);
}

TEST_CASE("train_transformer: every causal kind of attention trains, and generates text") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  for (const char* kind : {"full", "local:4", "causal_linear", "top_k:4"}) {
    CAPTURE(kind);
    const Ended ended = runs.run(runs.fresh(2) + Arguments{"--attention", kind, "--generate", "4"});
    CHECK(ended.code == 0);
    CHECK(ended.err == "");
  }
}

TEST_CASE("train_transformer: a resumed run is saved with its settings") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(4) + Arguments{"--save", runs.saved}).code == 0);
  CHECK(step_of(runs.saved) == 4);
  const Arguments on{"--resume", runs.saved, "--generate", "0"};
  REQUIRE(runs.run(on + Arguments{"--steps", "7"}).code == 0);  // the text is known, too
  CHECK(step_of(runs.saved) == 7);
  REQUIRE(
      runs.run(on + Arguments{"--steps", "9", "--dim", "8", "--save", runs.path("other")}).code ==
      0);
  CHECK(step_of(runs.saved) == 7);
  CHECK(step_of(runs.path("other")) == 9);
  const auto kept = sash::optim::checkpoint_info(runs.path("other")).extra;
  CHECK(kept.at("dim") == "8");
  CHECK(kept.at("steps") == "9");
  CHECK(kept.at("seed") == "1");
}

TEST_CASE(
    "train_transformer: every signal that can be caught saves, and training goes on from it") {
  if (!is_built(program("train_transformer"))) return;
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGUSR1, SIGPIPE}) {
    CAPTURE(signal);
    const Runs runs;
    const Arguments arguments = runs.fresh(1000000) + Arguments{"--metrics", runs.metrics};
    ChildProcess child(runs.command(arguments + Arguments{"--save", runs.saved}), runs.path("log"));
    REQUIRE(ChildProcess::soon([&] { return lines_of(runs.metrics).size() >= 3; }));
    child.send(signal);
    CHECK(child.wait() == 128 + signal);
    contains(child.err(), "stopped by SIG");
    CHECK(step_of(runs.saved) == static_cast<int64_t>(lines_of(runs.metrics).size()));
  }
}

TEST_CASE("train_transformer: training is saved when nobody reads its output") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const Arguments arguments{"--save", runs.saved, "--metrics", runs.metrics};
  ChildProcess child(runs.command(runs.fresh(1000000) + arguments), runs.path("log"),
                     {.stdout_is_a_pipe = true});
  REQUIRE(ChildProcess::soon([&] { return !lines_of(runs.metrics).empty(); }));
  child.close_stdout();
  CHECK(child.wait() == 128 + SIGPIPE);
  CHECK(step_of(runs.saved) == static_cast<int64_t>(lines_of(runs.metrics).size()));
}

TEST_CASE("train_transformer: an ignored signal stays ignored") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  ChildProcess child(runs.command(runs.fresh(300) + Arguments{"--metrics", runs.metrics}),
                     runs.path("log"), {.ignored_signal = SIGHUP});
  REQUIRE(ChildProcess::soon([&] { return !lines_of(runs.metrics).empty(); }));
  child.send(SIGHUP);
  CHECK(child.wait() == 0);
  CHECK(lines_of(runs.metrics).size() == 300);
}

TEST_CASE("train_transformer: a stopped and resumed run gives the bits of one run") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string whole = runs.path("whole");
  REQUIRE(runs.run(runs.fresh(400) + Arguments{"--save", whole, "--dropout", "0.1"}).code == 0);
  ChildProcess child(runs.command(runs.fresh(400) + Arguments{"--save", runs.saved, "--dropout",
                                                              "0.1", "--metrics", runs.metrics}),
                     runs.path("log"));
  REQUIRE(ChildProcess::soon([&] { return lines_of(runs.metrics).size() >= 20; }));
  child.send(SIGTERM);
  const int code = child.wait();
  CHECK((code == 128 + SIGTERM || code == 0));
  REQUIRE(runs.run({"--resume", runs.saved, "--text", runs.text, "--generate", "0"}).code == 0);
  CHECK(step_of(runs.saved) == 400);
  CHECK(file_text(runs.saved) == file_text(whole));
}

TEST_CASE("train_transformer: every precision trains, is saved, and resumes to the same bits") {
  if (!is_built(program("train_transformer"))) return;
  for (const char* precision : {"float32", "tf32", "bf16", "f16", "fp8", "float64"}) {
    CAPTURE(precision);
    const Runs runs;
    const Arguments with{"--precision", precision};
    const std::string whole = runs.path("whole");
    const Arguments long_run = runs.fresh(150) + with + Arguments{"--lr", "1e-3"};
    REQUIRE(runs.run(long_run + Arguments{"--save", whole}).code == 0);
    ChildProcess child(
        runs.command(long_run + Arguments{"--save", runs.saved, "--metrics", runs.metrics}),
        runs.path("log"));
    REQUIRE(ChildProcess::soon([&] { return lines_of(runs.metrics).size() >= 10; }));
    child.send(SIGTERM);
    const int code = child.wait();
    // On a busy machine the training has ended when the signal comes: 0, or killed after it.
    CHECK((code == 128 + SIGTERM || code == 0 || code == -SIGTERM));
    const Arguments on{"--resume", runs.saved, "--text", runs.text, "--generate", "0"};
    REQUIRE(runs.run(on).code == 0);
    CHECK(file_text(runs.saved) == file_text(whole));
    CHECK(sash::optim::checkpoint_info(whole).extra.at("precision") == precision);
    const Ended ended = runs.run({"--resume", whole, "--generate", "10", "--prompt", "line 4"});
    CHECK(ended.code == 0);
    contains(ended.out, std::string(precision) + ", ");
  }
}

TEST_CASE("train_transformer: a killed run can be resumed from what --save-every saved") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  ChildProcess child(
      runs.command(runs.fresh(1000000) + Arguments{"--save", runs.saved, "--save-every", "2"}),
      runs.path("log"));
  REQUIRE(ChildProcess::soon([&] { return fs::exists(runs.saved); }));
  child.send(SIGKILL);
  CHECK(child.wait() == -SIGKILL);
  CHECK(step_of(runs.saved) >= 2);
  CHECK(step_of(runs.saved) % 2 == 0);
}

TEST_CASE("train_transformer: NaN and infinity stop the training and are never saved") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(3) + Arguments{"--save", runs.saved}).code == 0);
  const std::string before = file_text(runs.saved);
  const Ended ended = runs.run({"--resume", runs.saved, "--steps", "200", "--lr", "1e30",
                                "--generate", "0", "--save-every", "0"});
  CHECK(ended.code == 1);
  contains(ended.err, "expected a finite ");
  contains(ended.err, " at step ");
  contains(ended.err, ", got ");
  contains(ended.err, runs.saved + " is the last good checkpoint");
  CHECK(file_text(runs.saved) == before);
}

TEST_CASE("train_transformer: the last checkpoint survives a full disk") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(3) + Arguments{"--save", runs.saved}).code == 0);
  const std::string before = file_text(runs.saved);
  const int64_t files = runs.files();
  const Ended ended =
      runs.run({"--resume", runs.saved, "--steps", "6", "--generate", "0", "--save-every", "4"},
               {.most_file_bytes = 4096});
  CHECK(ended.code == 1);
  contains(ended.err, "warning: step 4 is not saved: save_safetensors: cannot write");
  contains(ended.err, "error: save_safetensors: cannot write '" + runs.saved + "'");
  CHECK(file_text(runs.saved) == before);
  CHECK(runs.files() == files);
}

TEST_CASE("train_transformer: metrics hold every step once, and the last validation") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const Arguments to{"--metrics", runs.metrics};
  const auto check = [&](size_t steps) {
    const auto lines = lines_of(runs.metrics);
    REQUIRE(lines.size() == steps);
    for (size_t i = 0; i < steps; ++i) CHECK(lines[i]["step"] == i + 1);
    CHECK(lines.back()["val_loss"].is_number());
  };
  REQUIRE(runs.run(runs.fresh(6) + to + Arguments{"--save", runs.saved}).code == 0);
  check(6);
  const Arguments on = Arguments{"--resume", runs.saved, "--generate", "0"} + to;
  REQUIRE(runs.run(on + Arguments{"--steps", "9", "--save", runs.path("other")}).code == 0);
  check(9);
  std::ofstream(runs.metrics, std::ios::app) << "{\"step\": 10, \"lo";  // cut short
  REQUIRE(runs.run(on + Arguments{"--steps", "8"}).code == 0);          // from 6: 7 and 8 are new
  check(8);

  std::ofstream(runs.path("diary")) << "Dear diary,\nit rains.\n";
  const Ended ended = runs.run(runs.fresh(2) + Arguments{"--metrics", runs.path("diary")});
  CHECK(ended.code == 1);
  contains(ended.err, "expected metrics in line 1 of " + runs.path("diary"));
  CHECK(file_text(runs.path("diary")) == "Dear diary,\nit rains.\n");
}

TEST_CASE("train_transformer: --tensorboard and --report, of a first run and a resumed one") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string board = runs.path("board"), page = runs.path("page.html");
  const Arguments watched{"--tensorboard", board, "--report", page};
  const auto events = [&] {
    std::string all;
    for (const auto& file : fs::directory_iterator(board)) all += file_text(file.path());
    return all;
  };
  REQUIRE(runs.run(runs.fresh(3) + watched + Arguments{"--save", runs.saved}).code == 0);
  for (const char* tag : {"loss/train", "loss/validation", "lr"}) contains(events(), tag);
  const std::string first = file_text(page);
  for (const char* part : {"train_transformer, causal", "</span>3 of 3</div>", "<h2>Settings</h2>",
                           "<h2>Model</h2>", "<h2>Mask</h2>", "<h2>Attention of layer 0"}) {
    contains(first, part);
  }
  const size_t before = events().size();
  const Arguments on{"--resume", runs.saved, "--steps", "5", "--generate", "4"};
  REQUIRE(runs.run(on + watched).code == 0);
  CHECK(events().size() > before);
  contains(file_text(page), "</span>4 to 5 of 5</div>");
  contains(file_text(page), "<h2>Sample</h2>");

  const int64_t files = runs.files();
  contains(runs.run(runs.fresh(3) + Arguments{"--report", runs.text}).err,
           "expected --report and --text to be different files");
  contains(runs.run(runs.fresh(3) + Arguments{"--report", runs.path("none/a.html")}).err,
           "cannot create '" + runs.path("none/a.html"));
  contains(runs.run(runs.fresh(3) + Arguments{"--tensorboard", runs.text}).err, runs.text);
  contains(runs.run({"--resume", runs.saved, "--report", page}).err,
           "expected --steps or --text with --resume and --report, got neither");
  CHECK(runs.files() == files);
}

TEST_CASE("train_transformer: a full disk costs the metrics, and no more") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string page = runs.path("page.html");
  const Ended ended = runs.run(
      runs.fresh(3) + Arguments{"--metrics", "/dev/full", "--report", page, "--generate", "5"});
  CHECK(ended.code == 1);
  contains(ended.err, "warning: cannot write the metrics to /dev/full");
  contains(ended.err, "error: /dev/full lacks metrics");
  contains(ended.out, "validation loss");
  contains(ended.out, "----\n");
  contains(file_text(page), "<h2>Sample</h2>");
}

TEST_CASE("train_transformer: output that cannot be written is an error") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(2) + Arguments{"--save", runs.saved}).code == 0);
  fs::remove(runs.path("log.out"));
  fs::create_symlink("/dev/full", runs.path("log.out"));
  ChildProcess child(runs.command({"--resume", runs.saved, "--generate", "5", "--prompt", "line"}),
                     runs.path("log"));
  CHECK(child.wait() == 1);
  contains(child.err(), "error: cannot write to standard output");
}

TEST_CASE("train_transformer: text is printed beyond a NUL") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  std::ofstream file(runs.path("nul"), std::ios::binary);
  for (int i = 0; i < 1000; ++i) file << 'a' << '\0';
  file.close();
  const Ended ended = runs.run(
      runs.fresh(1) + Arguments{"--text", runs.path("nul"), "--generate", "50", "--prompt", "a"});
  CHECK(ended.code == 0);
  const size_t begin = ended.out.find("----\n") + 5;
  const std::string text = ended.out.substr(begin, ended.out.rfind("\n----\n") - begin);
  CHECK(text.size() == 51);
  CHECK(text.find('\0') < 50);
}

TEST_CASE("train_transformer: --keep makes a folder of checkpoints, and --resume takes it") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const Arguments keep{"--save", runs.saved, "--save-every", "2", "--keep", "2"};
  REQUIRE(runs.run(runs.fresh(5) + keep).code == 0);
  for (const char* name : {"best", "step-00000004", "step-00000005"}) {
    CHECK(fs::exists(runs.saved + "/" + name + ".safetensors"));
  }
  CHECK(!fs::exists(runs.saved + "/step-00000002.safetensors"));
  contains(runs.run(runs.fresh(5) + keep).err,
           "expected a save folder without checkpoints of another run, got");
  REQUIRE(runs.run({"--resume", runs.saved, "--steps", "7", "--generate", "0"}).code == 0);
  CHECK(step_of(runs.saved + "/step-00000007.safetensors") == 7);
  CHECK(fs::exists(runs.saved + "/step-00000005.safetensors"));  // as many as before
}

TEST_CASE("train_transformer: --dry-run writes nothing, --overfit-batch learns one batch") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const int64_t files = runs.files();
  std::vector<std::string> dry =
      runs.command(runs.fresh(1000000) + Arguments{"--save", runs.saved, "--generate", "3"});
  dry.push_back("--dry-run");
  ChildProcess child(dry, runs.path("log"));
  CHECK(child.wait() == 0);
  contains(child.out(), "step 1/1");
  contains(child.out(), "validation loss");
  contains(child.out(), "----");
  CHECK(runs.files() == files + 2);  // the log

  const std::string page = runs.path("page"), trace = runs.path("trace");
  const Arguments files_of{"--metrics", runs.metrics, "--report", page, "--profile", trace};
  for (const bool earlier : {false, true}) {
    if (earlier) REQUIRE(runs.run(runs.fresh(3) + files_of).code == 0);
    const std::string before = file_text(runs.metrics) + file_text(page) + file_text(trace);
    std::vector<std::string> again =
        runs.command(runs.fresh(3) + files_of + Arguments{"--tensorboard", runs.path("board")});
    again.push_back("--dry-run");
    CHECK(ChildProcess(again, runs.path("log")).wait() == 0);
    CHECK(file_text(runs.metrics) + file_text(page) + file_text(trace) == before);
    CHECK(runs.files() == files + (earlier ? 5 : 2));
  }

  std::vector<std::string> overfit =
      runs.command(runs.fresh(200) + Arguments{"--metrics", runs.metrics, "--lr", "1e-2"});
  overfit.push_back("--overfit-batch");
  ChildProcess again(overfit, runs.path("log"));
  CHECK(again.wait() == 0);
  CHECK(lines_of(runs.metrics).back()["loss"].get<double>() < 1);
}

TEST_CASE("train_transformer: text is generated from a checkpoint alone") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  REQUIRE(runs.run(runs.fresh(3) + Arguments{"--save", runs.saved}).code == 0);
  fs::remove(runs.text);
  const std::string before = file_text(runs.saved);
  const Arguments write{"--resume", runs.saved, "--generate", "50", "--prompt", "and 4"};
  const Ended ended = runs.run(write);
  CHECK(ended.code == 0);
  contains(ended.out, "no training");
  contains(ended.out, "----\nand 4");
  CHECK(runs.run(write).out == ended.out);
  CHECK(runs.run(write + Arguments{"--seed", "8"}).out != ended.out);
  CHECK(file_text(runs.saved) == before);
}

TEST_CASE("train_transformer: --profile writes a trace of some steps, and prints a table") {
  if (!is_built(program("train_transformer"))) return;
  const Runs runs;
  const std::string trace = runs.path("trace");
  const Ended ended = runs.run(runs.fresh(5) + Arguments{"--profile", trace});
  REQUIRE(ended.code == 0);
  contains(ended.out, "linear_forward");
  contains(ended.out, trace + " has the trace of 5 steps");
  std::ifstream file(trace);
  int64_t updates = 0;
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const nlohmann::json& event : all["traceEvents"]) {
    updates += event["name"] == "adam_step" ? 1 : 0;
  }
  CHECK(updates == 5);
  contains(runs.run(runs.fresh(5) + Arguments{"--profile", runs.text}).err,
           "expected --profile and --text to be different files");
}
