// The text of an attention mask, as `sash mask` takes it. The last bytes are the lengths.
#include <algorithm>

#include <sash/ops/attention/mask/attention_mask.h>
#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/ops/attention/mask/mask_statistics.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"causal",
                                     "dense",
                                     "full",
                                     "local:",
                                     "window:",
                                     "symmetric_window:",
                                     "causal_window:",
                                     "dilated_window:",
                                     "global:",
                                     "sinks:",
                                     "random_blocks:",
                                     "longformer:",
                                     "neighborhood:",
                                     "bigbird",
                                     "bigbird:16,3,2,3",
                                     " | ",
                                     " & ",
                                     "(",
                                     ")",
                                     ":",
                                     ",",
                                     "inf",
                                     "0",
                                     "1",
                                     "-1",
                                     "2",
                                     "3",
                                     "64",
                                     "9223372036854775807",
                                     "-9223372036854775808",
                                     "4611686018427387904",
                                     "18446744073709551616"};

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const char* mask :
       {"causal", "causal_window:256 | sinks:4", "(local:64 & causal) | global:0,5", "window:3,inf",
        "dilated_window:4,4,2", "random_blocks:2,1,16", "bigbird:16,3,2,3,1", "longformer:2,0",
        "neighborhood:1,16,3", "neighborhood:2,8,8,3,3,1,1,1,1,0,1"}) {
    all.push_back(std::string(mask) + "\x20\x40");
  }
  return all;
}

void run(Bytes& bytes) {
  const int64_t queries = bytes.ConsumeIntegralInRange(0, 100);
  const int64_t keys = rarely(bytes, 4) ? bytes.ConsumeIntegralInRange(0, 100) : queries;
  const auto mask = AttentionMask::parse(bytes.ConsumeRemainingBytesAsString());
  mask.to_string();
  mask.causal_reach();
  const MaskStatistics counts = mask_statistics(mask, queries, keys);
  if (queries == 0 || keys == 0) return;
  const int64_t heads = counts.all_blocks / ((queries + 63) / 64 * ((keys + 63) / 64));
  require(counts.visible_pairs >= 0 && counts.visible_pairs <= heads * queries * keys,
          "no more visible pairs than pairs");
  const std::string picture = mask_picture(mask, queries, keys, 200);
  const auto drawn = std::count(picture.begin(), picture.end(), '#');
  require(heads != 1 || drawn == counts.visible_pairs, "the picture shows what is counted");
}

}  // namespace sash::fuzz
