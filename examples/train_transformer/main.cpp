// Trains a character-level transformer, by default on the sources of sash itself, and lets it
// write.
#include <atomic>
#include <csignal>
#include <cstdio>

#include <sash/sash.h>

#include "console.h"
#include "corpus.h"
#include "options.h"
#include "trainer.h"

namespace {

std::atomic<bool> stop_requested{false};

void request_stop(int) {
  stop_requested = true;
  std::signal(SIGINT, SIG_DFL);  // a second Ctrl-C ends the program at once
}

Corpus load_corpus(const Options& options) {
  if (options.text.empty()) return Corpus::from_files(CORPUS_TRAIN, CORPUS_VALID);
  return Corpus::from_file(options.text);
}

int train(Options& options) {
  const sash::Device device = sash::Device::parse(options.device);
  sash::set_default_device(device);
  sash::set_default_dtype(sash::parse_dtype(options.dtype));
  sash::manual_seed(options.seed);
  const Corpus corpus = load_corpus(options);
  Trainer trainer(options, corpus, device);
  std::printf("%s, %lld parameters, on %s (%s)\n", options.dtype.c_str(),
              static_cast<long long>(trainer.model().num_parameters()), to_string(device).c_str(),
              sash::backend(device.type).description(device).c_str());
  std::printf("%zu characters to learn, %zu held out, %lld different\n", corpus.train().size(),
              corpus.valid().size(), static_cast<long long>(corpus.vocabulary()));

  std::signal(SIGINT, request_stop);
  Console console(options.steps);
  Metrics metrics(options.metrics);
  trainer.run(console, metrics, stop_requested);

  const std::string save_path =
      options.save.empty() && stop_requested ? "train_transformer.safetensors" : options.save;
  if (!save_path.empty()) {
    trainer.save(save_path);
    std::printf("saved step %lld to %s\n", static_cast<long long>(trainer.step()),
                save_path.c_str());
  }
  if (stop_requested) return 0;

  const double loss = trainer.validation_loss();
  std::printf("validation loss %.3f nats per character; trigram baseline %.3f\n", loss,
              trigram_loss(corpus));
  // Self-attention to one position alone is a model of one length; it writes nothing.
  if (options.generate > 0 && options.attention != "self") {
    std::printf("----\n%s%s\n----\n", options.prompt.c_str(),
                trainer.write(options.prompt, options.generate).c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int exit_code = 0;
  if (!parse_options(argc, argv, options, exit_code)) return exit_code;
  try {
    return train(options);
  } catch (const sash::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
