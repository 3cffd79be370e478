// Files of metrics that a resumed training continues. The last byte says whether it is CSV.
#include <unistd.h>

#include <fstream>

#include <sash/optim/logging/metrics_log.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"step",
                                     "step,loss\n",
                                     "{\"step\":",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     "\n",
                                     "\r\n",
                                     "1",
                                     "-1",
                                     "1e400",
                                     "9223372036854775808",
                                     "null",
                                     "\"",
                                     "{\"step\":1,\"loss\":2}\n"};

std::vector<std::string> seeds() {
  return {std::string("{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n") + '\0',
          "step,loss\n1,2.5\n2,\n\1"};
}

void run(Bytes& bytes) {
  static const std::string folder = "/dev/shm/sash_fuzz." + std::to_string(::getpid());
  const std::string path = folder + (bytes.ConsumeBool() ? ".csv" : ".jsonl");
  std::ofstream(path, std::ios::binary) << bytes.ConsumeRemainingBytesAsString();
  const optim::MetricsLog log(path);
}

}  // namespace sash::fuzz
