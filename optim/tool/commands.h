#pragma once

#include <cstdint>
#include <string>

/// The subcommands of `sash`; each prints to standard output, and throws a `sash::Error` on
/// failure.

/// What there is: this library, the processor, the cards or why there are none.
void print_devices();

/// Tensors, dtypes, shapes, totals and metadata of a file of safetensors, GGUF or NumPy's .npy, or
/// of a checkpoint; for a folder, a line for each such file. Reads no elements.
void print_file(const std::string& path);

struct MaskChoice {
  std::string mask;
  int64_t tokens = 1024;  ///< queries and keys
  std::string svg;        ///< a file for the picture; none if empty
};
/// A picture of an attention mask, and how much work it leaves.
void print_mask(const MaskChoice& choice);

struct BenchChoice {
  std::string device = "cpu";
  double seconds = 0.5;  ///< at least, for each row
};
/// Times products, attention and a training step.
void print_bench(const BenchChoice& choice);

/// The example train_transformer; returns the exit code.
int train(int argc, char** argv);
