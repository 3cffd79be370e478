#include "bfloat16_product.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "../../../core/error.h"
#include "../../../core/parallel.h"
#include "bfloat16_blocks.h"
#include "operand.h"
#include "tiles.h"

#if SASH_BFLOAT16_BLOCKS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sash::cpu {

#if SASH_BFLOAT16_BLOCKS
namespace bfloat16_blocks {
namespace {

// Whether the processor has AMX for bfloat16, and the kernel lets this process use it.
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16 = 1U << 22, kTiles = 1U << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return (d & kBfloat16) && (d & kTiles) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Bfloat16Unit find_unit() {
  const char* const variable = std::getenv("SASH_BFLOAT16");
  const std::string_view asked = variable ? variable : "";
  if (asked == "float32") return Bfloat16Unit::none;
  if (!asked.empty() && asked != "avx512" && asked != "amx") {
    throw ValueError("SASH_BFLOAT16", "float32, avx512 or amx", std::string(asked));
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Bfloat16Unit::none;
  if (asked != "avx512" && may_use_amx()) return Bfloat16Unit::amx;
  const bool fast = __builtin_cpu_is("amd");
  return fast || asked == "avx512" ? Bfloat16Unit::avx512 : Bfloat16Unit::none;
}

// The tile registers of a thread, for a scope.
class TileRegisters {
 public:
  explicit TileRegisters(bool used) : used_(used) {
    if (used_) set_tile_shapes();
  }
  ~TileRegisters() {
    if (used_) release_tiles();
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  bool used_;
};

// An operand in scratch memory, as strips of 32 lines. A strip has `steps` steps.
class PackedOperand {
 public:
  PackedOperand(const KernelContext& context, const Lines& x, bool by_line, const Batch& batch,
                const Strides& strides)
      : steps_(pieces(x.depth, kBlock)),
        strips_(pieces(x.lines, kBlock)),
        shared_(std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; })),
        memory_(context, items(batch) * strips_ * steps_ * kStepBytes) {
    constexpr int64_t kStrips = 8, kSteps = 16;
    const int64_t across = pieces(strips_, kStrips), along = pieces(steps_, kSteps);
    const int64_t work = std::min(strips_, kStrips) * std::min(steps_, kSteps);
    parallel_for_each(items(batch) * across * along, kStrips * kSteps / work, [&](int64_t task) {
      const int64_t item = task / (across * along);
      Lines from = x;
      from.data += batch.offset(item, strides);
      const int64_t strip = task % across * kStrips, step = task / across % along * kSteps;
      const int64_t rows = std::min(kStrips, strips_ - strip),
                    cols = std::min(kSteps, steps_ - step);
      // In the order of x's memory.
      const int64_t inner = x.depth_stride == 1 ? cols : rows;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t first = i / inner, second = i % inner;
        const int64_t line = strip + (x.depth_stride == 1 ? first : second);
        const int64_t k = step + (x.depth_stride == 1 ? second : first);
        Pair* const to = at(item, line, k);
        pack_tile(from, line * kBlock, k * kBlock, by_line, to);
        pack_tile(from, line * kBlock + kSide, k * kBlock, by_line, to + kTile);
      }
    });
  }

  int64_t steps() const { return steps_; }
  int64_t strips() const { return strips_; }
  Pair* at(int64_t item, int64_t strip, int64_t step) const {
    const int64_t block = ((shared_ ? 0 : item) * strips_ + strip) * steps_ + step;
    return memory_.ptr<Pair>() + block * kStep;
  }

 private:
  static constexpr int64_t kStepBytes = kStep * static_cast<int64_t>(sizeof(Pair));
  int64_t items(const Batch& batch) const { return shared_ ? 1 : numel(batch.shape); }

  int64_t steps_, strips_;
  bool shared_;  // by all items of the batch
  Workspace memory_;
};

void multiply_packed(const KernelContext& context, Bfloat16Unit unit, const PackedOperand& a,
                     const PackedOperand& b, const Result& result, const Batch& batch) {
  constexpr int64_t kMostSteps = 16, kMostCols = 512;  // a strip takes 2 KiB a step
  const bool amx = unit == Bfloat16Unit::amx;
  const Multiply multiply = amx ? multiply_amx : multiply_avx512;
  const int64_t items = numel(batch.shape), steps = a.steps();
  // A strip of A stays in the L1 cache. With AMX, 1 MiB of strips of B stays in the L2 cache, if no
  // sums have to: then long rows of the result are written.
  const bool wide = amx && steps <= kMostSteps;
  const Grid::Limits limits{.rows = 8,
                            .cols = wide ? kMostCols / steps : 8,
                            .row_step = 1,
                            .col_step = 1,
                            .wanted = 16,
                            .least_work = 1 << 7};
  const Grid grid(limits, items, a.strips(), b.strips(), steps);
  const int64_t depth = even_piece(steps, kMostSteps, 1), size = kBlock * kBlock;
  const int64_t kept = depth < steps ? grid.rows * grid.cols : 2;
  const int64_t work = grid.rows * grid.cols * steps;
  parallel_for(items * grid.tiles(), limits.least_work / work, [&](int64_t task, int64_t past) {
    const TileRegisters registers(amx);
    const Workspace sums(context, kept * size * static_cast<int64_t>(sizeof(float)));
    for (; task < past; ++task) {
      const int64_t item = task / grid.tiles();
      Result to = result;
      const int64_t element = to.is_float ? sizeof(float) : sizeof(bfloat16);
      to.data = static_cast<char*>(to.data) + batch.offset(item, batch.c) * element;
      const int64_t i0 = task % grid.tiles() / grid.col_tiles * grid.rows;
      const int64_t j0 = task % grid.col_tiles * grid.cols;
      const int64_t rows = std::min(a.strips() - i0, grid.rows);
      const int64_t cols = std::min(b.strips() - j0, grid.cols);
      Finished finished;
      for (int64_t k = 0; k < steps; k += depth) {
        for (int64_t block = 0; block < rows * cols; ++block) {
          const int64_t i = i0 + block / cols, j = j0 + block % cols;
          float* const sum = sums.ptr<float>() + block % kept * size;
          multiply(a.at(item, i, k), b.at(item, j, k), std::min(depth, steps - k), k > 0, sum,
                   finished);
          const bool is_last = k + depth >= steps;
          finished = is_last ? Finished{&to, sum, i * kBlock, j * kBlock} : Finished{};
        }
      }
      finished.write(0, kBlock);
    }
  });
}

TensorView turned(TensorView x) {
  const int last = x.rank() - 1;
  std::swap(x.shape[last - 1], x.shape[last]);
  std::swap(x.strides[last - 1], x.strides[last]);
  return x;
}

}  // namespace
}  // namespace bfloat16_blocks

Bfloat16Unit bfloat16_unit() {
  static const Bfloat16Unit unit = bfloat16_blocks::find_unit();
  return unit;
}

bool multiply_bfloat16(KernelContext& context, View a, View b, View bias, View c, double alpha,
                       double beta) {
  using namespace bfloat16_blocks;
  const int col = c.rank() - 1, row = col - 1;
  const int64_t m = c.shape[row], n = c.shape[col], k = a.shape[col];
  constexpr int64_t kLeastSide = 9, kLeastDepth = 16;
  if (a.dtype != DType::bfloat16 || std::min(m, n) < kLeastSide || k < kLeastDepth ||
      c.numel() == 0 || bfloat16_unit() == Bfloat16Unit::none) {
    return false;
  }
  if (c.strides[col] != 1) {
    return multiply_bfloat16(context, turned(b), turned(a), bias, turned(c), alpha, beta);
  }
  const MatrixOperand<bfloat16> left(context, a), right(context, b);
  const Batch batch{leading(c.shape), leading(left.strides()), leading(right.strides()),
                    leading(c.strides)};
  const auto lines = [&](const Matrix<const bfloat16>& x, int64_t count) {
    return Lines{x.data, x.row_stride, x.col_stride, count, k};
  };
  const PackedOperand rows(context, lines(left.matrix(), m), true, batch, batch.a);
  const PackedOperand cols(context, lines(right.matrix().transposed(), n), false, batch, batch.b);
  const Result result{.data = c.data,
                      .is_float = c.dtype == DType::float32,
                      .row_stride = c.strides[row],
                      .rows = m,
                      .cols = n,
                      .alpha = static_cast<float>(alpha),
                      .beta = static_cast<float>(beta),
                      .bias = bias.data ? bias.ptr<const bfloat16>() : nullptr};
  multiply_packed(context, bfloat16_unit(), rows, cols, result, batch);
  return true;
}

#else

Bfloat16Unit bfloat16_unit() { return Bfloat16Unit::none; }
bool multiply_bfloat16(KernelContext&, View, View, View, View, double, double) { return false; }

#endif

}  // namespace sash::cpu
