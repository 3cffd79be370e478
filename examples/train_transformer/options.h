#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

inline constexpr const char* kOp = "train_transformer";  // in errors

/// The command line, with defaults.
struct Options {
  std::string device = "cpu";
  std::string text;                  ///< empty: the project's own sources
  std::string attention = "causal";  ///< for `nn::AttentionKind::parse`, or "self"
  std::string precision;             ///< empty: bf16 on CUDA, float32 on the CPU
  std::string optimizer = "adamw";   ///< or "muon"
  std::string save;
  std::string resume;
  std::string metrics;
  std::string tensorboard;
  std::string report;
  std::string profile;
  std::string prompt = "Tensor ";
  int gpus = 1;  ///< ranks, each with a card
  int64_t steps = 2000;
  int64_t batch = 8;
  int64_t context = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t dim = 128;
  int64_t generate = 400;
  int64_t save_every = 500;
  int64_t keep = 0;  ///< 0: --save is a file; else a folder of so many checkpoints, and the best
  int64_t log_every = 50;
  double dropout = 0.0;
  double lr = 4e-3;
  bool capture = true;
  bool overfit_batch = false;
  bool dry_run = false;
  double temperature = 0.8;
  uint64_t seed = 1;
  std::set<std::string> given;  ///< flags present on the command line, without dashes

  bool has(const std::string& flag) const { return given.count(flag) > 0; }
};

/// Parses the command line, and calls the program. Returns the exit code, as `run_program` does.
int run_with_options(int argc, char** argv, const std::function<int(const Options&)>& program);
