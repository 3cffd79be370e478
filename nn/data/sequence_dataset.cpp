#include "sequence_dataset.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "../../ops/random/randperm.h"
#include "../../tensor/factories.h"

namespace sash::nn::data {
namespace {

constexpr TensorOptions kIds{.dtype = DType::int64, .device = kCPU};

void check_lengths(const std::vector<std::vector<int64_t>>& sequences, int64_t least) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (std::ssize(sequences[i]) >= least) continue;
    throw ValueError("SequenceDataset", "sequences of " + std::to_string(least) + " tokens or more",
                     std::to_string(sequences[i].size()) + " in sequence " + std::to_string(i));
  }
}

std::vector<int64_t> random_order(int64_t n, Generator& generator) {
  return randperm(n, generator, kIds).to_vector<int64_t>();
}

}  // namespace

SequenceDataset::SequenceDataset(std::vector<std::vector<int64_t>> sequences,
                                 SequenceDatasetOptions options)
    : sequences_(std::move(sequences)), options_(std::move(options)) {
  check_lengths(sequences_, options_.labels ? 1 : 2);
  if (options_.multiple < 1) {
    throw ValueError("SequenceDataset", "a multiple of 1 or more",
                     std::to_string(options_.multiple));
  }
  if (options_.labels && options_.labels->size() != sequences_.size()) {
    throw ValueError("SequenceDataset", "a label for each sequence",
                     std::to_string(options_.labels->size()) + " labels for " +
                         std::to_string(sequences_.size()) + " sequences");
  }
}

const std::vector<int64_t>& SequenceDataset::at(int64_t index) const {
  if (index >= 0 && index < size()) return sequences_[static_cast<size_t>(index)];
  throw IndexError("SequenceDataset", "an index in [0, " + std::to_string(size()) + ")",
                   std::to_string(index));
}

std::span<const int64_t> SequenceDataset::inputs_of(int64_t index) const {
  const std::span<const int64_t> tokens = at(index);
  return options_.labels ? tokens : tokens.first(tokens.size() - 1);
}

Batch SequenceDataset::get(int64_t index) const {
  const std::span<const int64_t> inputs = inputs_of(index);
  const Shape shape{std::ssize(inputs)};
  const Tensor target = options_.labels
                            ? scalar_tensor((*options_.labels)[static_cast<size_t>(index)], kIds)
                            : from_host(inputs.data() + 1, shape, DType::int64, kIds);
  return {from_host(inputs.data(), shape, DType::int64, kIds), target};
}

std::vector<int64_t> SequenceDataset::lengths() const {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < size(); ++i) lengths.push_back(std::ssize(inputs_of(i)));
  return lengths;
}

Batch SequenceDataset::batch(std::span<const int64_t> indices) const {
  std::vector<int32_t> lengths, ends{0};
  int64_t longest = 0, total = 0;
  for (const int64_t index : indices) {
    const int64_t n = std::ssize(inputs_of(index));
    longest = std::max(longest, n);
    total += n;
    if (total > std::numeric_limits<int32_t>::max()) {
      throw ValueError("SequenceDataset", "a batch of fewer than 2^31 tokens", "more");
    }
    lengths.push_back(static_cast<int32_t>(n));
    ends.push_back(static_cast<int32_t>(total));
  }
  const int64_t count = std::ssize(indices);
  longest += (options_.multiple - longest % options_.multiple) % options_.multiple;
  const bool packs = options_.form == SequenceBatch::packed;
  const Shape shape = packs ? Shape{1, total} : Shape{count, longest};
  const Tensor inputs = full(shape, options_.padding, kIds);
  const Tensor targets = full(options_.labels ? Shape{count} : shape, kIgnoreIndex, kIds);
  int64_t* input = inputs.data<int64_t>();
  int64_t* target = targets.data<int64_t>();
  for (const int64_t index : indices) {
    const std::span<const int64_t> tokens = inputs_of(index);
    const int64_t step = packs ? std::ssize(tokens) : longest;
    std::copy(tokens.begin(), tokens.end(), input);
    input += step;
    if (options_.labels) {
      *target++ = (*options_.labels)[static_cast<size_t>(index)];
    } else {
      std::copy(at(index).begin() + 1, at(index).end(), target);
      target += step;
    }
  }
  const std::vector<int32_t>& ranges = packs ? ends : lengths;
  const Shape extent{static_cast<int64_t>(ranges.size())};
  return {inputs, targets, from_host(ranges.data(), extent, DType::int32, {.device = kCPU})};
}

BatchSampler length_groups(std::vector<int64_t> lengths, LengthGroupsOptions options) {
  for (const auto& [name, value] :
       {std::pair{"batch", options.batch}, std::pair{"group", options.group}}) {
    if (value >= 1) continue;
    throw ValueError("length_groups", std::string(name) + " of 1 or more", std::to_string(value));
  }
  return [lengths = std::move(lengths), options](Generator& generator) {
    const auto size = static_cast<int64_t>(lengths.size());
    std::vector<int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    if (options.shuffle) order = random_order(size, generator);
    std::vector<std::vector<int64_t>> batches;
    const bool is_one = options.group > size / options.batch;  // the product may overflow
    const int64_t together = is_one ? size : options.batch * options.group;
    for (int64_t first = 0; first < size; first += together) {
      const int64_t past = std::min(size, first + together);
      std::stable_sort(order.begin() + first, order.begin() + past, [&](int64_t a, int64_t b) {
        return lengths[static_cast<size_t>(a)] < lengths[static_cast<size_t>(b)];
      });
      for (int64_t at = first; at < past; at += options.batch) {
        const int64_t end = std::min(past, at + options.batch);
        if (end - at < options.batch && options.drop_last) continue;
        batches.emplace_back(order.begin() + at, order.begin() + end);
      }
    }
    if (!options.shuffle) return batches;
    std::vector<std::vector<int64_t>> shuffled;
    for (const int64_t i : random_order(static_cast<int64_t>(batches.size()), generator)) {
      shuffled.push_back(std::move(batches[static_cast<size_t>(i)]));
    }
    return shuffled;
  };
}

}  // namespace sash::nn::data
