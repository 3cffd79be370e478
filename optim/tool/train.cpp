#include "../../examples/train_transformer/options.h"
#include "../../examples/train_transformer/run.h"
#include "commands.h"

int train(int argc, char** argv) { return run_with_options(argc, argv, run); }
