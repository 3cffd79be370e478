// Trains a character-level transformer, by default on the sources of sash, and generates text.
#include "options.h"
#include "run.h"

int main(int argc, char** argv) { return run_with_options(argc, argv, run); }
