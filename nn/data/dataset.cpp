#include "dataset.h"

#include <typeinfo>

#include "../../core/call_stack.h"
#include "../../ops/index/gather.h"
#include "../../ops/random/randperm.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/factories.h"

namespace sash::nn::data {
namespace {

void check_index(const char* op, int64_t index, int64_t size) {
  if (index >= 0 && index < size) return;
  throw IndexError(op, "an index in [0, " + std::to_string(size) + ")", std::to_string(index));
}

// Throws unless two samples of a batch can be stacked.
void check_alike(const Dataset& dataset, int64_t first, const Batch& a, int64_t second,
                 const Batch& b) {
  const auto of = [](int64_t index) { return " in sample " + std::to_string(index); };
  const std::string op = plain_name(typeid(dataset).name()) + ".batch";
  if (a.size() != b.size()) {
    throw ShapeError(op, std::to_string(a.size()) + " tensors, as" + of(first),
                     std::to_string(b.size()) + of(second));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() || !b[i].defined() || a[i].shape() == b[i].shape()) continue;
    ShapeError error(
        op,
        "tensor " + std::to_string(i) + " of shape " + to_string(a[i].shape()) + ", as" + of(first),
        to_string(b[i].shape()) + of(second));
    error.append(
        "samples of several lengths are padded or packed by SequenceDataset, or by a batch() of "
        "your own");
    throw error;
  }
}

void check_dataset(const char* op, const std::shared_ptr<const Dataset>& dataset) {
  if (!dataset) throw ValueError(op, "a dataset", "a null pointer");
}

}  // namespace

Dataset::~Dataset() = default;

Batch Dataset::batch(std::span<const int64_t> indices) const {
  std::vector<Batch> samples;
  for (const int64_t index : indices) {
    samples.push_back(get(index));
    check_alike(*this, indices[0], samples.front(), index, samples.back());
  }
  Batch batch;
  for (size_t part = 0; !samples.empty() && part < samples.front().size(); ++part) {
    std::vector<Tensor> rows;
    for (const Batch& sample : samples) rows.push_back(sample[part]);
    batch.push_back(stack(rows));
  }
  return batch;
}

TensorDataset::TensorDataset(Batch tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw ValueError("TensorDataset", "at least one tensor", "none");
  for (const Tensor& tensor : tensors_) {
    if (tensor.rank() > 0 && tensor.size(0) == size()) continue;
    throw ShapeError("TensorDataset", "tensors whose first extent is " + std::to_string(size()),
                     to_string(tensor.shape()));
  }
}

int64_t TensorDataset::size() const {
  if (tensors_.empty())
    throw ValueError("TensorDataset", "tensors", "tensors that were moved from");
  return tensors_.front().rank() == 0 ? 1 : tensors_.front().size(0);
}

Batch TensorDataset::get(int64_t index) const {
  check_index("TensorDataset", index, size());
  Batch sample;
  for (const Tensor& tensor : tensors_) sample.push_back(tensor[index]);
  return sample;
}

Batch TensorDataset::batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) check_index("TensorDataset", index, size());
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch;
  for (const Tensor& tensor : tensors_) {
    const Tensor rows =
        from_host(indices.data(), {count}, DType::int64, {.device = tensor.device()});
    batch.push_back(index_select(tensor, 0, rows));
  }
  return batch;
}

Subset::Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  check_dataset("Subset", dataset_);
  for (const int64_t index : indices_) check_index("Subset", index, dataset_->size());
}

Batch Subset::get(int64_t index) const {
  check_index("Subset", index, size());
  return dataset_->get(indices_[static_cast<size_t>(index)]);
}

Batch Subset::batch(std::span<const int64_t> indices) const {
  std::vector<int64_t> chosen;
  for (const int64_t index : indices) {
    check_index("Subset", index, size());
    chosen.push_back(indices_[static_cast<size_t>(index)]);
  }
  return dataset_->batch(chosen);
}

std::vector<std::shared_ptr<const Dataset>> random_split(std::shared_ptr<const Dataset> dataset,
                                                         const std::vector<int64_t>& sizes,
                                                         Generator& generator) {
  check_dataset("random_split", dataset);
  const int64_t total = dataset->size();
  int64_t left = total;
  for (const int64_t size : sizes) {
    if (size < 0) throw ValueError("random_split", "sizes of 0 or more", std::to_string(size));
    left -= std::min(left + 1, size);
    if (left >= 0) continue;
    throw ValueError("random_split",
                     "sizes that add up to at most " + std::to_string(total) + " samples", "more");
  }
  const std::vector<int64_t> order =
      randperm(total, generator, {.device = kCPU}).to_vector<int64_t>();
  std::vector<std::shared_ptr<const Dataset>> parts;
  auto first = order.begin();
  for (const int64_t size : sizes) {
    parts.push_back(std::make_shared<Subset>(dataset, std::vector<int64_t>(first, first + size)));
    first += size;
  }
  return parts;
}

}  // namespace sash::nn::data
