#include "../train_transformer/options.h"
#include "../train_transformer/run.h"
#include "commands.h"

int train(int argc, char** argv) {
  Options options;
  int exit_code = 0;
  if (!parse_options(argc, argv, options, exit_code)) return exit_code;
  return run(options);
}
