#include <doctest/doctest.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/dlpack.h>

#include <cstddef>

using namespace sash;
using namespace sash::dlpack;

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48);
static_assert(sizeof(DLManagedTensorVersioned) == 80 &&
              offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

namespace {

/// A tensor as another library would export it; counts calls of its deleter.
template <class Managed>
struct Lender {
  std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int64_t> shape{2, 3};
  std::vector<int64_t> strides{3, 1};
  int deleted = 0;
  Managed managed{};

  Lender() {
    managed.dl_tensor = {values.data(), {kDLCPU, 0},    2, {kDLFloat, 32, 1},
                         shape.data(),  strides.data(), 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Lender*>(self->manager_ctx)->deleted; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 1};
  }
};

using Versioned = Lender<DLManagedTensorVersioned>;

}  // namespace

TEST_CASE_TEMPLATE("dlpack: an imported tensor shares memory until its last user is destroyed",
                   Managed, DLManagedTensor, DLManagedTensorVersioned) {
  Lender<Managed> lender;
  {
    const Tensor x = from_dlpack(&lender.managed);
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.strides() == Strides{3, 1});
    CHECK(x.dtype() == DType::float32);
    CHECK(x.device() == kCPU);
    CHECK(x.data<const float>() == lender.values.data());
    Tensor row = x[1];
    CHECK(row.to_vector<float>() == std::vector<float>{3, 4, 5});
    lender.values[4] = 40;
    CHECK(row.to_vector<float>() == std::vector<float>{3, 40, 5});
    CHECK(lender.deleted == 0);
  }
  CHECK(lender.deleted == 1);
}

TEST_CASE("dlpack: strides count elements, byte_offset counts bytes") {
  Versioned lender;
  lender.shape = {3, 2};
  lender.strides = {1, 3};
  lender.managed.dl_tensor.byte_offset = 2 * sizeof(float);
  const Tensor x = from_dlpack(&lender.managed);
  CHECK(x.to_vector<float>() == std::vector<float>{2, 5, 3, 6, 4, 7});
}

TEST_CASE("dlpack: null strides mean row-major, a null deleter is not called") {
  Versioned lender;
  lender.managed.dl_tensor.strides = nullptr;
  lender.managed.deleter = nullptr;
  const Tensor x = from_dlpack(&lender.managed);
  CHECK(x.strides() == Strides{3, 1});
}

TEST_CASE("dlpack: scalars and empty tensors") {
  Versioned scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = nullptr;
  scalar.managed.dl_tensor.strides = nullptr;
  CHECK(from_dlpack(&scalar.managed).item<float>() == 0);
  Versioned nothing;
  nothing.shape = {0, 3};
  nothing.managed.dl_tensor.data = nullptr;
  CHECK(from_dlpack(&nothing.managed).numel() == 0);
  CHECK(nothing.deleted == 1);
}

TEST_CASE("dlpack: a read-only tensor is copied and deleted") {
  Versioned lender;
  lender.managed.flags = kFlagReadOnly;
  const Tensor x = from_dlpack(&lender.managed);
  CHECK(lender.deleted == 1);
  CHECK(x.data<const float>() != lender.values.data());
  CHECK(x.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("dlpack: a refused tensor is not deleted") {
  Versioned lender;
  DLManagedTensorVersioned good = lender.managed;
  const auto refuses = [&]<class E>(const E*, auto change, const char* message) {
    lender.managed = good;
    change(lender.managed);
    CHECK_THROWS_WITH_AS(from_dlpack(&lender.managed), message, E);
    CHECK(lender.deleted == 0);
  };
  constexpr const DTypeError* dtype_error = nullptr;
  constexpr const ShapeError* shape_error = nullptr;
  constexpr const ValueError* value_error = nullptr;
  constexpr const DeviceError* device_error = nullptr;
  using Managed = DLManagedTensorVersioned;

  refuses(
      dtype_error,
      [](Managed& m) {
        m.dl_tensor.dtype = {kDLInt, 16, 1};
      },
      "from_dlpack: expected one lane of a sash dtype, got code 0, 16 bits, 1 lanes");
  refuses(
      dtype_error, [](Managed& m) { m.dl_tensor.dtype.lanes = 4; },
      "from_dlpack: expected one lane of a sash dtype, got code 2, 32 bits, 4 lanes");
  refuses(
      device_error, [](Managed& m) { m.dl_tensor.device.device_type = 10; },
      "from_dlpack: expected device type 1 (CPU) or 2 (CUDA), got 10");
  refuses(
      shape_error, [](Managed& m) { m.dl_tensor.ndim = 9; },
      "from_dlpack: expected 0 to 8 axes, got 9");
  refuses(
      shape_error, [](Managed& m) { m.dl_tensor.ndim = -1; },
      "from_dlpack: expected 0 to 8 axes, got -1");
  refuses(
      value_error, [](Managed& m) { m.dl_tensor.data = nullptr; },
      "from_dlpack: expected memory, got a null pointer");
  refuses(
      value_error, [](Managed& m) { m.dl_tensor.shape = nullptr; },
      "from_dlpack: expected a shape, got a null pointer");
  refuses(
      value_error, [](Managed& m) { m.dl_tensor.byte_offset = 2; },
      "from_dlpack: expected memory aligned to 4 bytes, got a byte_offset of 2");
  refuses(
      value_error,
      [](Managed& m) {
        m.version = {2, 0};
      },
      "from_dlpack: expected version 1.x, got 2.0");
  refuses(
      value_error,
      [&](Managed&) {
        lender.strides = {-3, 1};
      },
      "from_dlpack: expected strides of at least 0, got [-3, 1]");
  refuses(
      shape_error,
      [&](Managed&) {
        lender.strides = {INT64_MAX / 2, 1};
      },
      "from_dlpack: expected fewer than 2^63 bytes, got [2, 3]");
  refuses(
      shape_error,
      [&](Managed&) {
        lender.shape = {-2, 3};
      },
      "shape: expected extents of at least 0, got [-2, 3]");
  CHECK_THROWS_WITH_AS(from_dlpack(static_cast<DLManagedTensor*>(nullptr)),
                       "from_dlpack: expected a managed tensor, got a null pointer", ValueError);
}

TEST_CASE("dlpack: an exported tensor keeps its memory until the receiver deletes it") {
  Tensor x = tensor(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3});
  const double* const memory = x.data<const double>();
  DLManagedTensorVersioned* managed = to_dlpack(x.transpose(0, 1)[1]);
  x = Tensor();
  CHECK(managed->version.major == 1);
  CHECK(managed->flags == 0);
  const DLTensor& lent = managed->dl_tensor;
  CHECK(lent.device.device_type == 1);
  CHECK(lent.device.device_id == 0);
  REQUIRE(lent.ndim == 1);
  CHECK(lent.shape[0] == 2);
  CHECK(lent.strides[0] == 3);
  CHECK(static_cast<char*>(lent.data) + lent.byte_offset ==
        reinterpret_cast<const char*>(memory + 1));
  CHECK(memory[4] == 5);
  managed->deleter(managed);
}

TEST_CASE("dlpack: round trip of every dtype") {
  constexpr std::pair<int, int> expected[kDTypeCount] = {{2, 32}, {2, 64}, {2, 16}, {4, 16},
                                                         {0, 32}, {0, 64}, {1, 8},  {6, 8}};
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const Tensor x = zeros({3}, {.dtype = dtype, .device = kCPU});
    DLManagedTensor* managed = to_dlpack_unversioned(x);
    CHECK(managed->dl_tensor.dtype.code == expected[d].first);
    CHECK(managed->dl_tensor.dtype.bits == expected[d].second);
    CHECK(managed->dl_tensor.dtype.lanes == 1);
    const Tensor y = from_dlpack(managed);
    CHECK(y.dtype() == dtype);
    CHECK(y.tensor_view().data == x.tensor_view().data);
  }
}

TEST_CASE("dlpack: a tensor that requires grad must be detached first") {
  Tensor x = zeros({2});
  x.requires_grad_();
  const char* message =
      "to_dlpack: expected a tensor without a gradient (detach it), got one that requires grad";
  CHECK_THROWS_WITH_AS(to_dlpack(x), message, AutogradError);
  CHECK_THROWS_WITH_AS(to_dlpack_unversioned(x.clone()), message, AutogradError);
  DLManagedTensorVersioned* managed = to_dlpack(x.detach());
  managed->deleter(managed);
  CHECK_THROWS_AS(to_dlpack(Tensor()), ValueError);
}
