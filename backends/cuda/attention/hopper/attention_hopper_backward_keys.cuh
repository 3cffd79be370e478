#pragma once

#include "attention_hopper_backward.cuh"

/// dK = scale dS' Q and dV = P' g, by blocks of threads that own keys and meet the queries of all
/// heads of their group that see these. Rows of their scores are keys: they form S' = K Q' and
/// dP' = V g'. Where the sums of a line do not fit the registers of one group, two share it: one
/// forms dK, the other S' once more and dV, so that neither waits for the other.
///
/// Memory: a block reads its rows of k and v once and each block of q, g and their terms that one
/// of its lines lists once a head; it writes its rows of dk and dv once.
namespace sash::cuda::hopper {

template <class S>
struct KeyShared : BackwardShared<S> {
  Terms terms[S::kStages];  ///< with the queries of a stage
};

/// The warp that copies keys and values, then queries and their terms.
template <class S, class T>
__device__ void copy_queries(const Backward<T>& x, KeyShared<S>& shared) {
  const Problem<T>& p = x.problem;
  const int heads = p.heads / p.groups;
  RingPlace<S::kResident> at_own;
  RingPlace<S::kStages> at;
  RingPlace<S::kWorks> at_work;
  Items items(x.schedule);
  for (int item; (item = items.next()) >= 0; at_work.advance()) {
    const WorkAhead work(x.schedule, p, S::kLines, item);
    work.note(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
    copy_own<S>(shared, at_own, work, x.k, x.v);
    const int end_head = (work.h + 1) * heads;
    for (int h = work.h * heads; h < end_head; ++h) {
      Walk<T, S::kLines, false> walk(p, work, h);
      bool more;
      do {
        const int s = at.stage();
        const int found = walk.next(), block = found == kNone ? 0 : found;
        more = walk.more();
        shared.a_empty[s].wait(at.parity() ^ 1);
        if (is_chosen()) {
          shared.a_full[s].arrive_and_expect(S::Rows::kBytes + sizeof(Terms));
          copy_rows(shared.a[s], 0, x.q, block * kBlock, h, work.b, shared.a_full[s]);
          copy_row(&shared.terms[s], x.terms_map, static_cast<int>(p.block_of(work.b, h)) + block,
                   shared.a_full[s]);
        }
        shared.step[s].note({found}, {walk.tile()}, h, !more && h + 1 == end_head,
                            shared.a_full[s]);
        at.advance();
      } while (more);
    }
  }
  end_work(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
}

/// The warp that copies cotangents.
template <class S, class T>
__device__ void copy_cotangents(const Backward<T>& x, KeyShared<S>& shared) {
  const Problem<T>& p = x.problem;
  const int heads = p.heads / p.groups;
  RingPlace<S::kStages> at;
  for (RingPlace<S::kWorks> at_work;; at_work.advance()) {
    shared.work_full[at_work.stage()].wait(at_work.parity());
    const Work<S::kLines>& noted = shared.work[at_work.stage()];
    if (noted.ended()) return;
    const WorkAhead work(noted);
    const int end_head = (work.h + 1) * heads;
    for (int h = work.h * heads; h < end_head; ++h) {
      Walk<T, S::kLines, false> walk(p, work, h);
      do {
        const int s = at.stage();
        const int row = min(walk.next(), static_cast<int>(p.map.query_blocks)) * kBlock;
        shared.b_empty[s].wait(at.parity() ^ 1);
        if (is_chosen()) {
          shared.b_full[s].arrive_and_expect(S::Rows::kBytes);
          copy_rows(shared.b[s], 0, x.g, row, h, work.b, shared.b_full[s]);
        }
        at.advance();
      } while (walk.more());
    }
  }
}

/// A group that multiplies, and forms dk, dv or both of its line.
template <class S, class T, bool forms_dk, bool forms_dv>
class KeyGroup {
 public:
  __device__ KeyGroup(const Backward<T>& x, KeyShared<S>& shared)
      : x_(x),
        shared_(shared),
        line_(group() / S::kSplit),
        k_(shared.own[0][0][line_]),
        q_(shared.a[0]) {}

  __device__ void run() {
    while (true) {
      const int own = at_own_.stage();
      shared_.work_full[at_work_.stage()].wait(at_work_.parity());
      const Work<S::kLines>& work = shared_.work[at_work_.stage()];
      if (work.ended()) return;
#pragma unroll
      for (float& x : dk_) x = 0;
#pragma unroll
      for (float& x : dv_) x = 0;
      shared_.own_full[own].wait(at_own_.parity());
      const Operand k = k_.at(own, sizeof(shared_.own[0]));
      do {
        step(k, k + sizeof(shared_.own[0][0]));
        at_.advance();
      } while (!last_);
      const int key = work.line[line_] * kBlock;
      const int64_t head = static_cast<int64_t>(work.b) * x_.problem.groups + work.h;
      const bool shared = work.shared;
      if constexpr (S::kLines > 1) {
        if (shared) {
          add_up<S::kGroups>(dk_, reinterpret_cast<float*>(&shared_.own[own]));
          add_up<S::kGroups>(dv_, reinterpret_cast<float*>(&shared_.own[own]));
        }
      }
      shared_.own_empty[own].arrive_as_one();
      at_own_.advance();
      at_work_.advance();
      write(head * x_.problem.keys + key, shared && line_ > 0 ? 0 : x_.problem.keys - key);
    }
  }

 private:
  __device__ void step(Operand k, Operand v) {
    const int s = at_.stage();
    shared_.a_full[s].wait(at_.parity());
    const int tile = shared_.step[s].tile[line_][0];
    last_ = shared_.step[s].last;
    if (tile == kAbsent) {
      shared_.b_full[s].wait(at_.parity());
      shared_.a_empty[s].arrive_as_one();
      shared_.b_empty[s].arrive_as_one();
      return;
    }
    Mask<1, false> mask;
    const bool masked = tile >= 0;
    if (masked || S::kGeneral) {
      mask.load(x_.problem, shared_.work[at_work_.stage()], shared_.step[s], line_);
    }
    const Operand q = q_.at(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    const Terms& terms = shared_.terms[s];
    // S' = K Q' - lse / scale and dP' = V g' - D; general kernels subtract later.
    constexpr bool add = !S::kGeneral;
    if constexpr (add) start_from(score_, terms.score);
    if constexpr (add && forms_dk) start_from(slope_, terms.slope);
    begin_products();
    multiply_rows<typename S::Rows, typename S::Rows, add>(score_, k, q);
    end_products();
    shared_.b_full[s].wait(at_.parity());
    if constexpr (forms_dk) {
      begin_products();
      multiply_rows<typename S::Rows, typename S::Rows, add>(slope_, v, g);
      end_products();
    }
    uint32_t words[16];
    // dV += P' g
    const auto start_dv = [&] {
      pack<T>(words, score_);
      settle(dv_);
      begin_products();
      multiply_add<typename S::Rows>(dv_, words, g);
      end_products();
    };
    if constexpr (S::kGeneral) {
      wait_for_products<0>();
      form_general(terms, mask, ScoresAt(shared_.work[at_work_.stage()], shared_.step[s], line_));
    } else {
      wait_for_products<forms_dk ? 1 : 0>();
      settle(score_);
      // P = 2^(exponent S')
      if (masked) mask.hide(score_);
#pragma unroll
      for (float& score : score_) score = exp2_approx(score * x_.problem.exponent);
      settle(score_);
    }
    if constexpr (!forms_dk) {
      shared_.a_empty[s].arrive_as_one();
      start_dv();
      wait_for_products<0>();
      settle(dv_);
      shared_.b_empty[s].arrive_as_one();
      return;
    }
    if constexpr (!S::kGeneral) {
      if constexpr (S::kChains && forms_dv) start_dv();
      wait_for_products<S::kChains && forms_dv ? 1 : 0>();
      // dS' = P dP'
      settle(slope_);
#pragma unroll
      for (int i = 0; i < 32; ++i) slope_[i] *= score_[i];
    }
    uint32_t slope_words[16];
    pack<T>(slope_words, slope_);
    if constexpr (!S::kChains && forms_dv) start_dv();
    if constexpr (!forms_dv) shared_.b_empty[s].arrive_as_one();
    // dK += dS' Q
    settle(dk_);
    begin_products();
    multiply_add<typename S::Rows>(dk_, slope_words, q);
    end_products();
    if constexpr (forms_dv) {
      wait_for_products<1>();
      settle(dv_);
      shared_.b_empty[s].arrive_as_one();
    }
    wait_for_products<0>();
    settle(dk_);
    shared_.a_empty[s].arrive_as_one();
  }

  /// Lets sums [64][64] start from a value for each column.
  static __device__ void start_from(float (&sum)[32], const float (&value)[kBlock]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(value + column_of(j, 0));
      sum[4 * j] = sum[4 * j + 2] = pair.x;
      sum[4 * j + 1] = sum[4 * j + 3] = pair.y;
    }
    settle(sum);
  }

  /// P with dropout's factors, and E, of general kernels.
  __device__ void form_general(const Terms& terms, const Mask<1, false>& mask, const ScoresAt& at) {
    settle(score_);
    settle(slope_);
    const Problem<T>& p = x_.problem;
    const Scores<T, false> scores(p, at.b, at.h);
    const uint32_t kept =
        p.dropout
            ? Dropout(p, at.b, at.h).template kept<false, kBlock>(at.row + row_of_warp(), at.column)
            : ~0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = column_of(j, 0);
      fragments::form_slopes(
          four(score_, j), four(slope_, j), scores, p.kept, mask.seen(j), kept >> 4 * j,
          [&](int e) {
            return RowTerms{-terms.score[column + e % 2], -terms.slope[column + e % 2]};
          },
          at.row + row_of(0), at.column + column, [](const float(&)[4]) {});
    }
  }

  /// To row `first` of dk and dv and on, of which `rows` exist.
  __device__ void write(int64_t first, int rows) {
    const float scale[2] = {x_.problem.scale, x_.problem.scale}, one[2] = {1.f, 1.f};
    if constexpr (forms_dk) {
      store_rows(x_.dk + first * x_.qk_width, rows, x_.qk_width, dk_, scale);
    }
    if constexpr (forms_dv) {
      store_rows(x_.dv + first * x_.v_width, rows, x_.v_width, dv_, one);
    }
  }

  static constexpr int kSums = S::kWidth / 2;

  const Backward<T>& x_;
  KeyShared<S>& shared_;
  const int line_;
  const Operand k_, q_;
  RingPlace<S::kWorks> at_work_;
  RingPlace<S::kResident> at_own_;
  RingPlace<S::kStages> at_;
  bool last_;
  float score_[32], slope_[32], dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    key_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<KeyShared<S>*>(raw);
  shared.init();
  if (group() < S::kGroups) {
    take_registers<S::kRegisters>();
    if constexpr (S::kSplit == 1) {
      KeyGroup<S, T, true, true>(x, shared).run();
    } else if (group() % S::kSplit == 0) {
      KeyGroup<S, T, true, false>(x, shared).run();
    } else {
      KeyGroup<S, T, false, true>(x, shared).run();
    }
  } else {
    release_registers<S::kCopyRegisters>();
    if (warp() == 4 * S::kGroups) copy_queries<S>(x, shared);
    if (warp() == 4 * S::kGroups + 1) copy_cotangents<S>(x, shared);
  }
#endif
}

template <class S, class T = typename S::Element>
void launch_keys(const KernelContext& context, const Backward<T>& call) {
  static_assert(S::kStagesOfB == S::kStages);
  static constinit std::atomic<uint64_t> allowed{0};
  launch_walk<S, KeyShared<S>>(context, key_kernel<S>, allowed, call, call.problem.map.by_key,
                               call.problem.map.key_blocks, call.problem.groups);
}

}  // namespace sash::cuda::hopper
