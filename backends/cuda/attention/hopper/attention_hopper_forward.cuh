#pragma once

#include "../common/attention_fragments_scores.cuh"
#include "attention_hopper_walk.cuh"

/// Attention with a running softmax (M. Milakov and N. Gimelshein, "Online normalizer calculation
/// for softmax", 2018) whose products run behind the exponentials (J. Shah et al.,
/// "FlashAttention-3", NeurIPS 2024).
///
/// Memory: a block of threads reads its queries once and each block of keys and values that one of
/// its lines lists once; it writes its rows of out and lse once.
namespace sash::cuda::hopper {

/// Heads of `width` features; `lines` blocks of 64 queries, which meet `blocks` blocks of 64 keys a
/// step; `per_sm` blocks of threads share a multiprocessor. `chains`: whether products run while
/// weights are formed, which takes registers. `resident` buffers hold queries: of two, one is
/// filled while the other is in use.
template <class T, int width, int lines, int blocks, int stages, int per_sm, bool chains,
          int resident = 2>
struct ForwardShape : Groups<lines, per_sm> {
  using Element = T;
  static constexpr int kWidth = width, kBlocks = blocks, kStages = stages, kKeys = blocks * kBlock;
  static constexpr int kLines = lines, kResident = resident, kWorks = resident + 1;
  static constexpr bool kChains = chains;
  using Queries = Tile<T, width, kBlock>;
  using Keys = Tile<T, width, kKeys>;
};

template <class T>
struct Forward {
  Problem<T> problem;
  CUtensorMap q, k, v;
  T* out;
  float* lse;
  int width;  ///< features of out
  Schedule schedule;
};

/// For calls that are not plain.
template <class T, int width>
void forward_general(const KernelContext& context, const Forward<T>& call);

template <class S>
struct ForwardShared {
  typename S::Queries q[S::kResident][S::kLines];
  typename S::Keys k[S::kStages], v[S::kStages];
  Work<S::kLines> work[S::kWorks];
  Step<S::kLines, S::kBlocks> step[S::kStages];
  Barrier work_full[S::kWorks];
  Barrier q_full[S::kResident], q_empty[S::kResident];
  Barrier k_full[S::kStages], k_empty[S::kStages], v_full[S::kStages], v_empty[S::kStages];

  __device__ void init() {
    constexpr uint32_t readers = 4 * S::kGroups;  // one lane of each warp that multiplies
    if (threadIdx.x == 0) {
      for (Barrier& full : work_full) full.init(S::kLines);
      for (int i = 0; i < S::kResident; ++i) {
        q_full[i].init(1);
        q_empty[i].init(readers);
      }
      for (int i = 0; i < S::kStages; ++i) {
        k_full[i].init(1 + S::kLines);  // the copies, and those who note the step
        v_full[i].init(1);
        k_empty[i].init(readers);
        v_empty[i].init(readers);
      }
      publish_barriers();
    }
    __syncthreads();
  }
};

/// The warp that copies queries and keys.
template <class S, class T>
__device__ void copy_keys(const Forward<T>& x, ForwardShared<S>& shared) {
  const Problem<T>& p = x.problem;
  RingPlace<S::kResident> at_q;
  RingPlace<S::kStages> at;
  RingPlace<S::kWorks> at_work;
  Items items(x.schedule);
  for (int item; (item = items.next()) >= 0; at_work.advance()) {
    const WorkAhead work(x.schedule, p, S::kLines, item);
    work.note(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
    Walk<T, S::kLines, true, S::kBlocks> walk(p, work, work.h);
    const int head = p.group_of(work.h);
    Barrier& q_full = shared.q_full[at_q.stage()];
    shared.q_empty[at_q.stage()].wait(at_q.parity() ^ 1);
    if (is_chosen()) q_full.arrive_and_expect(S::kLines * S::Queries::kBytes);
    for (int i = 0; i < S::kLines; ++i) {
      const int row = __shfl_sync(~0u, work.line, i) * kBlock;
      if (is_chosen()) copy_rows(shared.q[at_q.stage()][i], 0, x.q, row, work.h, work.b, q_full);
    }
    at_q.advance();
    bool more;
    do {
      const int s = at.stage();
      int block[S::kBlocks], tile[S::kBlocks], row[S::kBlocks];
#pragma unroll
      for (int part = 0; part < S::kBlocks; ++part) {
        block[part] = walk.next();
        tile[part] = walk.tile();
        row[part] = min(block[part], static_cast<int>(p.map.key_blocks)) * kBlock;
      }
      more = walk.more();
      shared.k_empty[s].wait(at.parity() ^ 1);
      if (is_chosen()) {
        shared.k_full[s].arrive_and_expect(S::Keys::kBytes);
        for (int part = 0; part < S::kBlocks; ++part) {
          copy_rows(shared.k[s], part, x.k, row[part], head, work.b, shared.k_full[s]);
        }
      }
      shared.step[s].note(block, tile, work.h, !more, shared.k_full[s]);
      at.advance();
    } while (more);
  }
  end_work(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
}

/// The warp that copies values.
template <class S, class T>
__device__ void copy_values(const Forward<T>& x, ForwardShared<S>& shared) {
  const Problem<T>& p = x.problem;
  RingPlace<S::kStages> at;
  for (RingPlace<S::kWorks> at_work;; at_work.advance()) {
    shared.work_full[at_work.stage()].wait(at_work.parity());
    const Work<S::kLines>& noted = shared.work[at_work.stage()];
    if (noted.ended()) return;
    const WorkAhead work(noted);
    Walk<T, S::kLines, true, S::kBlocks> walk(p, work, work.h);
    const int head = p.group_of(work.h);
    do {
      const int s = at.stage();
      int row[S::kBlocks];
#pragma unroll
      for (int part = 0; part < S::kBlocks; ++part) {
        row[part] = min(walk.next(), static_cast<int>(p.map.key_blocks)) * kBlock;
      }
      shared.v_empty[s].wait(at.parity() ^ 1);
      if (is_chosen()) {
        shared.v_full[s].arrive_and_expect(S::Keys::kBytes);
        for (int part = 0; part < S::kBlocks; ++part) {
          copy_rows(shared.v[s], part, x.v, row[part], head, work.b, shared.v_full[s]);
        }
      }
      at.advance();
    } while (walk.more());
  }
}

/// A group that multiplies.
template <class S, class T>
class ForwardGroup {
 public:
  __device__ ForwardGroup(const Forward<T>& x, ForwardShared<S>& shared)
      : x_(x), shared_(shared), line_(group()), q_(shared.q[0][line_]), k_(shared.k[0]) {}

  __device__ void run() {
    while (true) {
      const int own = at_q_.stage();
      shared_.work_full[at_work_.stage()].wait(at_work_.parity());
      const Work<S::kLines>& work = shared_.work[at_work_.stage()];
      if (work.ended()) return;
#pragma unroll
      for (float& o : sum_) o = 0;
      highest_[0] = highest_[1] = -kInfinity;
      total_[0] = total_[1] = 0;
      shared_.q_full[own].wait(at_q_.parity());
      attend(q_.at(own, S::kLines * S::Queries::kBytes));
      const int query = work.line[line_] * kBlock;
      const int64_t row = x_.problem.row_of(work.b, work.h) + query;
      const bool shared = work.shared;
      if (shared) join(reinterpret_cast<float*>(&shared_.q[own]));
      shared_.q_empty[own].arrive_as_one();
      at_q_.advance();
      at_work_.advance();
      write(row, shared && line_ > 0 ? 0 : x_.problem.queries - query);
    }
  }

 private:
  /// Whether the step at hand shows this group something; once its keys are there.
  __device__ bool look() {
    shared_.k_full[at_.stage()].wait(at_.parity());
    const auto& step = shared_.step[at_.stage()];
    last_ = step.last;
    bool any = false;
    masked_ = false;
#pragma unroll
    for (int part = 0; part < S::kBlocks; ++part) {
      const int tile = step.tile[line_][part];
      any = any || tile != kAbsent;
      masked_ = masked_ || tile != kWhole;
    }
    if (any && masked_) mask_.load(x_.problem, shared_.work[at_work_.stage()], step, line_);
    if constexpr (S::kGeneral) at_scores_ = {shared_.work[at_work_.stage()], step, line_};
    return any;
  }

  __device__ void advance() {
    ended_ = last_;
    at_.advance();
  }

  __device__ void release(Barrier (&empty)[S::kStages], const RingPlace<S::kStages>& at) {
    empty[at.stage()].arrive_as_one();
  }

  /// O, not yet divided by the sums of weights.
  __device__ void attend(Operand q) {
    ended_ = false;
    while (!ended_) {
      if (!look()) {
        shared_.v_full[at_.stage()].wait(at_.parity());
        release(shared_.k_empty, at_);
        release(shared_.v_empty, at_);
        advance();
        continue;
      }
      float rescale[2];
      start_scores(q);
      wait_for_products<0>();
      settle(score_);
      release(shared_.k_empty, at_);
      form_weights(rescale);
      finish_weights(rescale);
      RingPlace<S::kStages> before = at_;
      advance();
      // The products of a step run while the weights of the next are formed. A step that shows
      // nothing ends the chain, so that no buffer waits for what comes after it.
      while (S::kChains && !ended_ && look()) {
        start_scores(q);
        start_sums(before);
        wait_for_products<1>();
        settle(score_);
        release(shared_.k_empty, at_);
        form_weights(rescale);
        wait_for_products<0>();
        settle(sum_);
        release(shared_.v_empty, before);
        finish_weights(rescale);
        before = at_;
        advance();
      }
      start_sums(before);
      wait_for_products<0>();
      settle(sum_);
      release(shared_.v_empty, before);
    }
  }

  /// S = Q K'
  __device__ void start_scores(Operand q) {
    begin_products();
    multiply_rows<typename S::Queries, typename S::Keys>(score_, q,
                                                         k_.at(at_.stage(), sizeof(shared_.k[0])));
    end_products();
  }

  /// O += P V
  __device__ void start_sums(const RingPlace<S::kStages>& at) {
    shared_.v_full[at.stage()].wait(at.parity());
    settle(sum_);
    begin_products();
    multiply_add<typename S::Keys>(sum_, weight_,
                                   k_.at(at.stage(), sizeof(shared_.k[0])) + sizeof(shared_.k));
    end_products();
  }

  /// From products to weights relative to the highest score so far, 2^(exponent (s - highest)), and
  /// what earlier ones have to be multiplied with.
  __device__ void form_weights(float (&rescale)[2]) {
    if constexpr (S::kGeneral) modify();
    if (masked_) mask_.hide(score_);
    const float exponent = this->exponent();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = highest_[half];
#pragma unroll
      for (int j = 2 * half; j < kScores; j += 4) now = max(now, max(score_[j], score_[j + 1]));
      now = max(now, __shfl_xor_sync(~0u, now, 1));
      now = max(now, __shfl_xor_sync(~0u, now, 2));
      const float shift = now == -kInfinity ? 0.f : now * exponent;
      rescale[half] = exp2_approx(fmaf(highest_[half], exponent, -shift));
      highest_[half] = now;
      float added = 0;
#pragma unroll
      for (int j = 2 * half; j < kScores; j += 4) {
        score_[j] = exp2_approx(fmaf(score_[j], exponent, -shift));
        score_[j + 1] = exp2_approx(fmaf(score_[j + 1], exponent, -shift));
        added += score_[j] + score_[j + 1];
      }
      total_[half] = fmaf(total_[half], rescale[half], added);
    }
    settle(score_);
    if constexpr (S::kGeneral) drop();
  }

  /// Of general kernels: from products to scores to the base 2.
  __device__ void modify() {
    const Scores<T, true> scores(x_.problem, at_scores_.b, at_scores_.h);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float bend[4];
      scores(four(score_, j), bend, at_scores_.row + row_of(0),
             at_scores_.column + column_of(j, 0));
    }
  }

  /// Of general kernels: weights, of which dropout keeps some.
  __device__ void drop() {
    const Problem<T>& p = x_.problem;
    if (!p.dropout) return;
    const uint32_t kept =
        Dropout(p, at_scores_.b, at_scores_.h)
            .template kept<true, S::kKeys>(at_scores_.row + row_of_warp(), at_scores_.column);
#pragma unroll
    for (int i = 0; i < kScores; ++i) score_[i] *= kept >> i & 1 ? p.kept : 0.f;
  }

  /// By what scores are multiplied on their way to the base 2.
  __device__ float exponent() const { return S::kGeneral ? 1.f : x_.problem.exponent; }

  __device__ void finish_weights(const float (&rescale)[2]) {
    pack<T>(weight_, score_);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum_[i] *= rescale[i / 2 % 2];
  }

  /// The sums of all groups, which share a line, to the first, by way of the tiles of its queries.
  __device__ void join(float* room) {
    float* const own = room + threadIdx.x % kGroup;
    const auto place = [own](int of_group, int i) { return own + (4 * of_group + i) * kGroup; };
    meet_groups<S::kGroups>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *place(line_, half) = highest_[half];
      *place(line_, 2 + half) = total_[half];
    }
    meet_groups<S::kGroups>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = -kInfinity, total = 0;
      for (int i = 0; i < S::kGroups; ++i) highest = max(highest, *place(i, half));
      const float shift = highest == -kInfinity ? 0.f : highest * exponent();
      const auto rescale = [&](float from) { return exp2_approx(fmaf(from, exponent(), -shift)); };
      for (int i = 0; i < S::kGroups; ++i) total += *place(i, 2 + half) * rescale(*place(i, half));
      const float factor = rescale(highest_[half]);
#pragma unroll
      for (int i = 2 * half; i < kSums; i += 4) {
        sum_[i] *= factor;
        sum_[i + 1] *= factor;
      }
      highest_[half] = highest;
      total_[half] = total;
    }
    add_up<S::kGroups>(sum_, room);
  }

  /// To row `first` of out and on, of which `rows` exist.
  __device__ void write(int64_t first, int rows) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      factor[half] = total == 0 ? 0.f : 1 / total;
      if (lane() % 4 == 0 && row_of(half) < rows) {
        x_.lse[first + row_of(half)] =
            total == 0 ? kInfinity : (highest_[half] * exponent() + log2f(total)) * kLn2;
      }
    }
    store_rows(x_.out + first * x_.width, rows, x_.width, sum_, factor);
  }

  static constexpr int kScores = S::kKeys / 2, kSums = S::kWidth / 2;

  const Forward<T>& x_;
  ForwardShared<S>& shared_;
  const int line_;
  const Operand q_, k_;
  RingPlace<S::kWorks> at_work_;
  RingPlace<S::kResident> at_q_;
  RingPlace<S::kStages> at_;
  bool last_, ended_, masked_;
  Mask<S::kBlocks, true> mask_;
  ScoresAt at_scores_;
  float score_[kScores], sum_[kSums];
  uint32_t weight_[kScores / 2];
  float highest_[2], total_[2];  ///< a thread's share of a row's total
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    forward_kernel(const __grid_constant__ Forward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<ForwardShared<S>*>(raw);
  shared.init();
  if (group() < S::kGroups) {
    take_registers<S::kRegisters>();
    ForwardGroup<S, T>(x, shared).run();
  } else {
    release_registers<S::kCopyRegisters>();
    if (warp() == 4 * S::kGroups) copy_keys<S>(x, shared);
    if (warp() == 4 * S::kGroups + 1) copy_values<S>(x, shared);
  }
#endif
}

template <class S, class T = typename S::Element>
void launch_forward(const KernelContext& context, const Forward<T>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  launch_walk<S, ForwardShared<S>>(context, forward_kernel<S>, allowed, call,
                                   call.problem.map.by_query, call.problem.map.query_blocks,
                                   call.problem.heads);
}

}  // namespace sash::cuda::hopper
