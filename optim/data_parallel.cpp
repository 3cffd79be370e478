#include "data_parallel.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.h"
#include "../tensor/autograd/node.h"
#include "../tensor/distributed/side_stream.h"
#include "../tensor/factories.h"
#include "../tensor/stream.h"

namespace sash::optim {

using distributed::Group;
using distributed::ReduceOp;
using distributed::SideStream;

namespace {

constexpr const char* kOp = "DataParallel";
constexpr size_t kMostReduced = 2;  // buckets

struct Named {
  std::string name;
  Tensor tensor;
};

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMost; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > kMost ? text + ", ... (" + std::to_string(names.size()) + ")" : text;
}

// The bytes of a tensor's elements, on the host.
std::vector<char> bytes_of(const Tensor& x) {
  const Tensor here = x.detach().contiguous().to(kCPU);
  const TensorView view = here.tensor_view();
  const auto* const data = static_cast<const char*>(view.data);
  return {data, data + view.numel() * size_of(view.dtype)};
}

uint64_t hash_of(const std::vector<Named>& all) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  const auto add = [&](const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  for (const Named& one : all) {
    add(one.name + to_string(one.tensor.shape()) + std::string(name(one.tensor.dtype())) + "\n");
  }
  return hash;
}

}  // namespace

struct DataParallel::State : std::enable_shared_from_this<State> {
  Group group;
  DataParallelOptions options;
  std::vector<Named> parameters;  // those that are trained
  std::vector<Named> tensors;     // all of the model, buffers included
  std::vector<Tensor> buffers;
  bool reduce = true;

  std::vector<std::vector<size_t>> buckets;  // in the order in which they become complete
  std::vector<size_t> bucket_of;             // of each parameter
  std::unique_ptr<SideStream> side;
  // Where the optimizer keeps its part of a gradient: a group and its parameter.
  Optimizer* optimizer = nullptr;
  std::vector<std::optional<std::pair<size_t, size_t>>> places;

  // Gradients whose parts are kept. To free them is to wait for their reduction.
  std::deque<std::vector<Tensor>> reduced;

  // Of the backward pass that is running.
  std::weak_ptr<void> pass;
  std::vector<bool> ready;
  std::vector<size_t> order, missing;
  size_t launched = 0;

  void start(nn::Module& model);
  void add_hooks();
  void complete(size_t parameter);
  void finish();

 private:
  void check_same() const;
  void begin_pass();
  void make_buckets();
  void launch(const std::vector<size_t>& bucket);
  void keep_part(size_t parameter);
  Tensor& part_of(size_t parameter) {
    const auto [group_number, number] = *places[parameter];
    return optimizer->groups_[group_number].reduced[number];
  }
  std::vector<size_t> settle_unused();
};

void DataParallel::State::start(nn::Module& model) {
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (tensor.requires_grad()) parameters.push_back({name, tensor});
    tensors.push_back({name, tensor});
  }
  for (const auto& [name, tensor] : model.named_buffers()) {
    tensors.push_back({name, tensor});
    buffers.push_back(tensor);
  }
  if (parameters.empty()) {
    throw ValueError(kOp, "a parameter that requires grad", "a model without one");
  }
  check_same();
  const NoGradGuard no_grad;
  std::vector<Tensor> all;
  for (const Named& one : tensors) all.push_back(one.tensor);
  group.broadcast(all);
}

void DataParallel::State::check_same() const {
  const Device device = parameters[0].tensor.device();
  const auto own = static_cast<int64_t>(hash_of(tensors));
  const std::vector<int64_t> all =
      group.all_gather(full({1}, own, {.dtype = DType::int64, .device = device}))
          .to_vector<int64_t>();
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw ValueError(kOp,
                     "parameters and buffers of the same names, shapes and dtypes on all ranks",
                     "others on rank " + std::to_string(r) + " than on rank 0");
  }
}

void DataParallel::State::add_hooks() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].tensor.register_post_accumulate_grad_hook([weak = weak_from_this(), i] {
      if (const std::shared_ptr<State> state = weak.lock()) state->complete(i);
    });
  }
}

void DataParallel::State::begin_pass() {
  auto token = std::make_shared<int>(0);
  pass = token;
  ready.assign(parameters.size(), false);
  order.clear();
  launched = 0;
  missing.clear();
  for (const std::vector<size_t>& bucket : buckets) missing.push_back(bucket.size());
  // The pass drops the function, and with it the token, if it ends with an exception.
  detail::after_backward([weak = weak_from_this(), token] {
    if (const std::shared_ptr<State> state = weak.lock()) state->finish();
  });
}

// The gradient of a parameter is complete.
void DataParallel::State::complete(size_t parameter) {
  if (!reduce) return;
  if (pass.expired()) begin_pass();
  ready[parameter] = true;
  order.push_back(parameter);
  if (buckets.empty()) return;
  --missing[bucket_of[parameter]];
  while (launched < buckets.size() && missing[launched] == 0) launch(buckets[launched++]);
}

void DataParallel::State::launch(const std::vector<size_t>& bucket) {
  std::vector<Tensor> whole, split;
  for (const size_t i : bucket) {
    const Tensor g = parameters[i].tensor.grad();
    if (!g.is_contiguous()) parameters[i].tensor.set_grad(g.contiguous());
    (places[i] ? split : whole).push_back(parameters[i].tensor.grad());
  }
  const Device device = parameters[bucket[0]].tensor.device();
  if (!side) side = std::make_unique<SideStream>(device);
  const NoGradGuard no_grad;
  if (reduced.size() == kMostReduced) reduced.pop_front();
  reduced.push_back(split);
  side->run([&] {
    group.all_reduce(whole, ReduceOp::mean);
    group.reduce_scatter_(split, ReduceOp::mean);
    for (const size_t i : bucket) {
      if (places[i]) keep_part(i);
    }
  });
}

// Copies this rank's part of a reduced gradient and drops the gradient, whose memory the side
// stream still reads.
void DataParallel::State::keep_part(size_t parameter) {
  Tensor& x = parameters[parameter].tensor;
  const Tensor g = x.grad();
  const int64_t share = g.numel() / group.size();
  const Tensor part = g.view({-1}).narrow(0, group.rank() * share, share);
  Tensor& kept = part_of(parameter);
  kept = kept.defined() ? kept + part : part.clone();
  record_stream(g, backend(g.device()).current_stream(g.device()));
  x.zero_grad();
}

// Gives parameters without a gradient zeros, because other ranks may have one. Returns those that
// no rank has reached.
std::vector<size_t> DataParallel::State::settle_unused() {
  const Device device = parameters[0].tensor.device();
  const std::vector<int> own(ready.begin(), ready.end());
  const Tensor used = tensor(own, {static_cast<int64_t>(own.size())}).to(device);
  group.all_reduce(used, ReduceOp::max);
  const std::vector<int> any = used.to_vector<int>();
  std::vector<size_t> unused;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (ready[i]) continue;
    Tensor& parameter = parameters[i].tensor;
    if (!parameter.grad().defined()) {
      if (!any[i]) unused.push_back(i);
      parameter.set_grad(zeros_like(parameter.detach()));
    }
  }
  return unused;
}

// All gradients of the pass are there.
void DataParallel::State::finish() {
  pass.reset();
  std::vector<std::string> unused;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (!ready[i]) unused.push_back(parameters[i].name);
  }
  if (!unused.empty() && !options.allow_unused) {
    throw AutogradError(kOp, "a backward pass that reaches every parameter, or allow_unused",
                        "no gradient for " + list_of(unused));
  }
  std::vector<size_t> drop;
  if (options.allow_unused) drop = settle_unused();
  if (buckets.empty()) make_buckets();
  while (launched < buckets.size()) launch(buckets[launched++]);
  side->join();
  reduced.clear();
  for (const size_t i : drop) {
    parameters[i].tensor.zero_grad();
    if (places[i]) part_of(i) = Tensor();
  }
}

// From the order in which the first pass completed the gradients on rank 0.
void DataParallel::State::make_buckets() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!ready[i]) order.push_back(i);
  }
  const std::vector<int64_t> own(order.begin(), order.end());
  const Tensor shared =
      tensor(own, {static_cast<int64_t>(own.size())}).to(parameters[0].tensor.device());
  group.broadcast(shared);
  bucket_of.resize(parameters.size());
  int64_t bytes = options.bucket_bytes;
  for (const int64_t i : shared.to_vector<int64_t>()) {
    const auto parameter = static_cast<size_t>(i);
    if (bytes >= options.bucket_bytes) {
      buckets.emplace_back();
      bytes = 0;
    }
    const Tensor& x = parameters[parameter].tensor;
    bytes += x.numel() * size_of(x.dtype());
    buckets.back().push_back(parameter);
    bucket_of[parameter] = buckets.size() - 1;
  }
}

DataParallel::DataParallel(nn::Module& model, const Group& group,
                           const DataParallelOptions& options)
    : state_(std::make_shared<State>()) {
  if (options.bucket_bytes < 1) {
    throw ValueError(kOp, "bucket_bytes of at least 1", std::to_string(options.bucket_bytes));
  }
  state_->group = group;
  state_->options = options;
  if (group.size() == 1) return;
  state_->start(model);
  state_->places.resize(state_->parameters.size());
  state_->add_hooks();
}

void DataParallel::set_reduce(bool reduce) { state_->reduce = reduce; }
const Group& DataParallel::group() const { return state_->group; }

void DataParallel::shard(Optimizer& optimizer) {
  optimizer.shard(state_->group);
  state_->optimizer = &optimizer;
  for (size_t g = 0; g < optimizer.groups_.size(); ++g) {
    const Optimizer::Group& group = optimizer.groups_[g];
    for (size_t k = 0; k < group.parameters.size(); ++k) {
      for (size_t i = 0; i < state_->parameters.size() && group.is_split(k); ++i) {
        const bool same = state_->parameters[i].tensor.is_same(group.parameters[k]);
        if (same) state_->places[i] = std::pair(g, k);
      }
    }
  }
}

void DataParallel::average_buffers() {
  const NoGradGuard no_grad;
  std::vector<Tensor> means, copies;
  for (const Tensor& buffer : state_->buffers) {
    (is_floating(buffer.dtype()) ? means : copies).push_back(buffer);
  }
  state_->group.all_reduce(means, ReduceOp::mean);
  state_->group.broadcast(copies);
}

void DataParallel::check_equal() const {
  if (state_->group.size() == 1) return;
  const NoGradGuard no_grad;
  std::vector<std::string> found;
  for (const Named& one : state_->tensors) {
    const Tensor first = one.tensor.detach().clone();
    state_->group.broadcast(first);
    const int differs = bytes_of(first) != bytes_of(one.tensor);
    const std::vector<int> all =
        state_->group
            .all_gather(full({1}, differs, {.dtype = DType::int32, .device = first.device()}))
            .to_vector<int>();
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r]) found.push_back(one.name + " (rank " + std::to_string(r) + ")");
    }
  }
  if (found.empty()) return;
  throw ValueError("DataParallel.check_equal", "the same bits on all ranks",
                   "others than on rank 0: " + list_of(found));
}

}  // namespace sash::optim
