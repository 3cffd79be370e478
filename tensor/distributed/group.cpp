#include "group.h"

#include <optional>
#include <string>

#include "../../core/distributed/world.h"
#include "../../core/error.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../copy.h"
#include "../factories.h"
#include "../graph.h"

namespace sash::distributed {
namespace {

Elements elements_of(const Tensor& x) {
  const TensorView view = x.tensor_view();
  return {view.data, view.numel(), view.dtype};
}

std::vector<Elements> elements_of(const std::vector<Tensor>& all) {
  std::vector<Elements> found;
  for (const Tensor& x : all) {
    if (x.numel() > 0) found.push_back(elements_of(x));
  }
  return found;
}

void check_tensor(const char* op, const Tensor& x) {
  if (!x.defined()) throw ValueError(op, "a defined tensor", "an undefined one");
  if (!x.is_contiguous()) throw ValueError(op, "a contiguous tensor", "strides of a view");
}

void check_written(const char* op, const Tensor& x) {
  if (!grad_enabled() || !x.requires_grad()) return;
  throw AutogradError(op, "a tensor that does not require grad, or a NoGradGuard",
                      "a write that the tape does not record");
}

void check_reduction(const char* op, const Tensor& x, ReduceOp reduction) {
  const bool sums = reduction == ReduceOp::sum || reduction == ReduceOp::mean;
  if (sums && x.dtype() == DType::boolean) {
    throw DTypeError(op, "numbers for a " + std::string(name(reduction)), "bool");
  }
  if (reduction == ReduceOp::mean && !is_floating(x.dtype())) {
    throw DTypeError(op, "a floating dtype for a mean", name(x.dtype()));
  }
}

void check_rank(const char* op, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw ValueError(op, "a rank in [0, " + std::to_string(size) + ")", std::to_string(rank));
}

}  // namespace

struct Group::State {
  int rank = 0, size = 1;
  bool is_world = false;
  std::optional<Device> used{};  // by the first collective
  // A part of the world has the engine of the device that it was split on.
  Device device{};
  std::shared_ptr<Engine> part{};

  Engine& engine(const char* op, Device on) const {
    if (is_world) return *World::get().engine(on);
    if (on == device) return *part;
    throw DeviceError(op, "tensors on " + to_string(device) + ", where the group was split",
                      "one on " + to_string(on));
  }

  // Of tensors that calls without a tensor make.
  Device device_of_numbers(const char* op) const {
    if (used) return *used;
    if (!is_world) return device;
    const Device first = default_device();
    if (first.is_cuda() || !try_backend(DeviceType::cuda)) return first;
    try {
      engine(op, first);
      return first;
    } catch (const NotImplemented&) {  // the CPU has no collectives
      return Device("cuda");
    }
  }
};

Group::Group() {
  static const auto alone = std::make_shared<State>();
  state_ = alone;
}

Group world() {
  static const Group all = [] {
    const Place& place = World::get().place();
    if (place.size == 1) return Group();
    auto state = std::make_shared<Group::State>();
    state->rank = place.rank;
    state->size = place.size;
    state->is_world = true;
    return Group(std::move(state));
  }();
  return all;
}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }

// Runs a collective on the device of `all`, whose elements it writes.
template <class Call>
void Group::call(const char* op, const std::vector<Tensor>& all, Call run, bool collective) const {
  for (const Tensor& x : all) {
    check_tensor(op, x);
    check_written(op, x);
    if (!(x.device() == all[0].device())) {
      throw DeviceError(op, "tensors of one device",
                        to_string(all[0].device()) + " and " + to_string(x.device()));
    }
  }
  if (all.empty() || size() == 1) return;
  const Device device = all[0].device();
  Engine& engine = state_->engine(op, device);
  if (!state_->used) state_->used = device;
  if (Link* const link = state_->is_world && collective ? World::get().link() : nullptr) {
    if (Graph::recording()) {
      detail::on_replay([link] { link->count_calls(1); }, [] {});
    } else {
      link->count_calls(1);
    }
  }
  run(engine, backend(device).current_stream(device));
  for (const Tensor& x : all) detail::count_write(x);
}

void Group::all_reduce(const Tensor& x, ReduceOp reduction) const {
  all_reduce(std::vector<Tensor>{x}, reduction);
}

void Group::all_reduce(const std::vector<Tensor>& all, ReduceOp reduction) const {
  constexpr const char* op = "Group.all_reduce";
  for (const Tensor& x : all) {
    if (x.defined()) check_reduction(op, x, reduction);
  }
  call(op, all, [&](Engine& engine, Stream stream) {
    engine.all_reduce(elements_of(all), reduction, stream);
  });
}

double Group::all_reduce(double value, ReduceOp reduction) const {
  if (size() == 1) return value;
  const NoGradGuard no_grad;
  const Device device = state_->device_of_numbers("Group.all_reduce");
  const Tensor x = full({}, value, {.dtype = DType::float64, .device = device});
  all_reduce(x, reduction);
  return x.item<double>();
}

void Group::reduce_scatter_(const std::vector<Tensor>& all, ReduceOp reduction) const {
  constexpr const char* op = "Group.reduce_scatter_";
  for (const Tensor& x : all) {
    if (!x.defined()) continue;
    check_reduction(op, x, reduction);
    if (x.numel() % size() != 0) {
      throw ShapeError(op, "elements that " + std::to_string(size()) + " divides",
                       to_string(x.shape()));
    }
  }
  call(op, all, [&](Engine& engine, Stream stream) {
    engine.reduce_scatter(elements_of(all), reduction, stream);
  });
}

void Group::all_gather_(const std::vector<Tensor>& all) const {
  constexpr const char* op = "Group.all_gather_";
  for (const Tensor& x : all) {
    if (x.defined() && x.numel() % size() != 0) {
      throw ShapeError(op, "elements that " + std::to_string(size()) + " divides",
                       to_string(x.shape()));
    }
  }
  call(op, all,
       [&](Engine& engine, Stream stream) { engine.all_gather(elements_of(all), stream); });
}

Tensor Group::reduce_scatter(const Tensor& x, ReduceOp reduction) const {
  constexpr const char* op = "Group.reduce_scatter";
  check_tensor(op, x);
  if (x.rank() == 0 || x.size(0) % size() != 0) {
    throw ShapeError(op, "a first axis that " + std::to_string(size()) + " divides",
                     to_string(x.shape()));
  }
  const NoGradGuard no_grad;
  const int64_t rows = x.size(0) / size();
  const Tensor all = x.clone();
  reduce_scatter_({all}, reduction);
  Shape shape = x.shape();
  shape[0] = rows;
  const Tensor own = empty(shape, x.options());
  if (own.numel() > 0) {
    const Elements part = elements_of(all).part(rank(), size());
    backend(x.device())
        .copy(elements_of(own).data, x.device(), part.data, x.device(), part.bytes(),
              backend(x.device()).current_stream(x.device()));
  }
  return own;
}

Tensor Group::all_gather(const Tensor& x) const {
  constexpr const char* op = "Group.all_gather";
  check_tensor(op, x);
  if (x.rank() == 0) throw ShapeError(op, "at least one axis", "a scalar");
  const NoGradGuard no_grad;
  Shape shape = x.shape();
  shape[0] *= size();
  const Tensor all = empty(shape, x.options());
  if (all.numel() > 0) {
    const Elements part = elements_of(all).part(rank(), size());
    backend(x.device())
        .copy(part.data, x.device(), elements_of(x).data, x.device(), part.bytes(),
              backend(x.device()).current_stream(x.device()));
    all_gather_({all});
  }
  return all;
}

void Group::broadcast(const Tensor& x, int root) const { broadcast(std::vector<Tensor>{x}, root); }

void Group::broadcast(const std::vector<Tensor>& all, int root) const {
  constexpr const char* op = "Group.broadcast";
  check_rank(op, root, size());
  call(op, all,
       [&](Engine& engine, Stream stream) { engine.broadcast(elements_of(all), root, stream); });
}

void Group::exchange(const std::vector<Parcel>& sent, const std::vector<Parcel>& received) const {
  constexpr const char* op = "Group.exchange";
  std::vector<Tensor> written;
  std::vector<Message> out, in;
  const auto add = [&](const Parcel& parcel, std::vector<Message>& messages) {
    check_rank(op, parcel.rank, size());
    check_tensor(op, parcel.tensor);
    if (parcel.tensor.numel() > 0) {
      messages.push_back({parcel.rank, elements_of(parcel.tensor)});
    }
  };
  for (const Parcel& parcel : sent) add(parcel, out);
  for (const Parcel& parcel : received) {
    add(parcel, in);
    written.push_back(parcel.tensor);
  }
  if (size() == 1) {
    if (sent.empty() && received.empty()) return;
    throw ValueError(op, "another rank", "a group of one");
  }
  // A rank that only sends writes nothing, but takes part.
  const auto run = [&](Engine& engine, Stream stream) { engine.exchange(out, in, stream); };
  if (!written.empty()) return call(op, written, run, false);
  if (sent.empty()) return;
  const Device device = sent[0].tensor.device();
  run(state_->engine(op, device), backend(device).current_stream(device));
}

void Group::barrier() const {
  if (size() == 1) return;
  synchronize(state_->used.value_or(default_device()));
  all_reduce(0.0);
}

Group Group::split(int color) const {
  constexpr const char* op = "Group.split";
  if (color < 0) throw ValueError(op, "a color of at least 0", std::to_string(color));
  if (size() == 1) return *this;
  const Device device = state_->used.value_or(default_device());
  const Tensor colors = all_gather(full({1}, color, {.dtype = DType::int32, .device = device}));
  const std::vector<int> all = colors.to_vector<int>();
  auto part = std::make_shared<State>();
  part->size = 0;
  for (int r = 0; r < size(); ++r) {
    if (all[static_cast<size_t>(r)] != color) continue;
    if (r == rank()) part->rank = part->size;
    ++part->size;
  }
  part->device = device;
  part->used = device;
  part->part = state_->engine(op, device).split(color);
  if (Link* const link = World::get().link()) {
    link->on_failure([engine = part->part] { engine->abort(); });
  }
  return Group(std::move(part));
}

}  // namespace sash::distributed
