// The command `sash`: devices, files, masks, a short benchmark, the bundled training and ranks.
#include <string_view>

#include <sash/core/distributed/launch.h>
#include <CLI/CLI.hpp>

#include "../../examples/support/program.h"
#include "commands.h"

namespace {

int run_command(int argc, char** argv) {
  CLI::App app{"Looks at machines, files and attention masks, and trains the bundled model."};
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", "sash " SASH_VERSION);
  app.add_subcommand("devices", "Processor, memory and cards, or why there are none")->callback([] {
    print_devices();
  });

  std::string file;
  CLI::App* const inspect = app.add_subcommand(
      "inspect",
      "Tensors and metadata of a safetensors, GGUF or .npy file, a checkpoint or a folder");
  inspect->add_option("file", file)->required();
  inspect->callback([&] { print_file(file); });

  MaskChoice mask;
  CLI::App* const draw = app.add_subcommand("mask", "Picture and cost of an attention mask");
  draw->add_option("mask", mask.mask, "Such as 'causal_window:256 | sinks:4'")->required();
  draw->add_option("--tokens", mask.tokens, "Queries and keys")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  draw->add_option("--svg", mask.svg, "File to draw the picture to")->check(check_path);
  draw->callback([&] { print_mask(mask); });

  BenchChoice bench;
  CLI::App* const time = app.add_subcommand("bench", "Times products, attention and training");
  time->add_option("--device", bench.device, "auto, cpu, cuda or cuda:<index>");
  time->add_option("--seconds", bench.seconds, "Time to spend on each row, at least")
      ->check(check_finite)
      ->check(CLI::Range(0.0, 60.0));
  time->callback([&] { print_bench(bench); });

  int ranks = 1, status = 0;
  CLI::App* const launch = app.add_subcommand(
      "launch",
      "Starts a program as several ranks on this host: sash launch -n 2 program arguments");
  launch->add_option("-n,--ranks", ranks, "Processes, each with a card")
      ->check(CLI::Range(1, 1024));
  launch->prefix_command();
  launch->callback([&] { status = sash::distributed::launch(ranks, launch->remaining()); });

  app.add_subcommand("train", "Trains the bundled transformer: see sash train --help");
  return run_program(app, argc, argv, [&] { return status; });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "train") return train(argc - 1, argv + 1);
  return run_command(argc, argv);
}
