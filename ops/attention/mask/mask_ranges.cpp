#include <limits>

#include "../../checks.h"
#include "mask_part.h"

/// Parts of ranges: windows, dilated windows, sinks and global tokens.
namespace sash {
namespace {

constexpr int64_t kUnbounded = int64_t{1} << 60;  // longer than any sequence

using Side = std::optional<int64_t>;

PositionReach reach_of(Side left, Side right) {
  PositionReach reach{.hides_later = right == 0};
  if (left && *left < kUnbounded) reach.past.recent = *left + 1;
  return reach;
}

// The first n keys. No query comes before the first one.
PositionReach reach_of(int64_t n) {
  if (n >= kUnbounded) return {};
  return {.past = {.recent = 0, .first = n}, .hides_later = n <= 1};
}

// a / b for b > 0, rounded down and up.
int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

std::string text_of(Side side) { return side ? std::to_string(*side) : "inf"; }

void check_side(const char* what, Side side) {
  if (!side || *side >= 0) return;
  throw ValueError(kMask, std::string(what) + " of at least 0 keys, or none",
                   std::to_string(*side));
}

// The range of a query moves forward with the query.
class WindowRule final : public MaskRule {
 public:
  WindowRule(const MaskShape& shape, Side left, Side right)
      : keys_{0, shape.keys}, offset_(shape.offset()), left_(left), right_(right) {
    // Longer sides show the same keys and could overflow.
    for (Side* side : {&left_, &right_}) {
      if (*side) *side = std::min(**side, shape.queries + shape.keys);
    }
  }

  void key_ranges(MaskHead, IndexRange queries, KeyRanges& keys) const override {
    keys.push_back({of(queries.first).first, of(queries.past - 1).past});
  }
  Coverage coverage(MaskHead, IndexRange queries, IndexRange keys) const override {
    return coverage_of(of(queries.first), of(queries.past - 1), keys);
  }
  uint64_t row_bits(MaskHead, int64_t query, int64_t key) const override {
    return bits_of(of(query), key);
  }

 private:
  IndexRange of(int64_t query) const {
    IndexRange range = keys_;
    const int64_t position = query + offset_;
    if (left_) range.first = std::max(keys_.first, position - *left_);
    if (right_) range.past = std::min(keys_.past, position + *right_ + 1);
    range.past = std::max<int64_t>(range.past, 0);
    return range;
  }

  IndexRange keys_;
  int64_t offset_;
  Side left_, right_;
};

class Window final : public MaskPart {
 public:
  Window(Side left, Side right) : left_(left), right_(right) {
    check_side("a left side", left);
    check_side("a right side", right);
  }
  std::string text() const override {
    if (!left_ && !right_) return "dense";
    if (!left_ && right_ == 0) return "causal";
    return "window:" + text_of(left_) + "," + text_of(right_);
  }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    return std::make_unique<WindowRule>(shape, left_, right_);
  }
  std::optional<PositionReach> reach() const override { return reach_of(left_, right_); }
  std::optional<KeyWindow> window() const override {
    return KeyWindow{left_.value_or(kUnbounded), right_.value_or(kUnbounded)};
  }

 private:
  Side left_, right_;
};

class DilatedRule final : public MaskRule {
 public:
  DilatedRule(const MaskShape& shape, Side left, Side right, const std::vector<int64_t>& dilations)
      : shape_(shape), left_(left), right_(right), dilations_(dilations) {
    // A longer step leaves the sequence too and could overflow. row_bits() reads up to 64 keys
    // past the end.
    for (int64_t& step : dilations_) step = std::min(step, shape.queries + shape.keys + 64);
  }

  void key_ranges(MaskHead head, IndexRange queries, KeyRanges& keys) const override {
    const int64_t step = dilation(head);
    const IndexRange at{queries.first + shape_.offset(), queries.past + shape_.offset()};
    // The steps by which the last query reaches key 0, and the first query the last key.
    int64_t lowest = ceil_div(1 - at.past, step);
    int64_t highest = floor_div(shape_.keys - 1 - at.first, step);
    if (left_) lowest = std::max(lowest, -*left_);
    if (right_) highest = std::min(highest, *right_);
    for (int64_t n = lowest; n <= highest; ++n) {
      const IndexRange next =
          intersect({at.first + n * step, at.past + n * step}, {0, shape_.keys});
      if (!next.empty()) append(keys, next);
    }
  }
  Coverage coverage(MaskHead, IndexRange, IndexRange) const override { return Coverage::partial; }
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    const int64_t step = dilation(head), distance = key - query - shape_.offset();
    uint64_t bits = 0;
    int64_t steps = ceil_div(distance, step);
    for (int64_t n = steps * step - distance; n < 64; n += step, ++steps) {
      if (is_inside(steps)) bits |= uint64_t{1} << n;
    }
    return bits;
  }
  void read_rows(MaskHead head, IndexRange queries, int64_t key, uint64_t* rows) const override {
    const int64_t step = dilation(head);
    uint64_t bits = row_bits(head, queries.first, key);
    for (int64_t query = queries.first;;) {
      *rows++ = bits;
      if (++query == queries.past) return;
      // The next query sees the same keys, moved by one.
      const int64_t distance = key - query - shape_.offset();
      const bool seen = distance % step == 0 && is_inside(distance / step);
      bits = bits << 1 | uint64_t{seen};
    }
  }

 private:
  bool is_inside(int64_t steps) const {
    return (!left_ || steps >= -*left_) && (!right_ || steps <= *right_);
  }
  int64_t dilation(MaskHead head) const {
    return dilations_[dilations_.size() == 1 ? 0 : static_cast<size_t>(head.head)];
  }

  MaskShape shape_;
  Side left_, right_;
  std::vector<int64_t> dilations_;
};

class DilatedWindow final : public MaskPart {
 public:
  DilatedWindow(Side left, Side right, std::vector<int64_t> dilations)
      : left_(left), right_(right), dilations_(std::move(dilations)) {
    check_side("a left side", left);
    check_side("a right side", right);
    if (dilations_.empty()) throw ValueError(kMask, "a dilation, or one for each head", "none");
    for (const int64_t dilation : dilations_) {
      if (dilation >= 1) continue;
      throw ValueError(kMask, "dilations of at least 1", std::to_string(dilation));
    }
  }
  std::string text() const override {
    std::string text = "dilated_window:" + text_of(left_) + "," + text_of(right_);
    for (const int64_t dilation : dilations_) text += "," + std::to_string(dilation);
    return text;
  }
  MaskExtents extents() const override { return {.per_head = dilations_.size() > 1}; }
  void fit(MaskShape& shape) const override {
    shape.heads = std::max(shape.heads, static_cast<int64_t>(dilations_.size()));
  }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const auto heads = static_cast<int64_t>(dilations_.size());
    if (heads != 1 && heads != shape.heads) {
      throw ValueError(kMask,
                       "one dilation, or one for each of " + std::to_string(shape.heads) + " heads",
                       std::to_string(heads));
    }
    return std::make_unique<DilatedRule>(shape, left_, right_, dilations_);
  }
  std::optional<PositionReach> reach() const override {
    return PositionReach{.past = {.exact = false}, .hides_later = right_ == 0};
  }

 private:
  Side left_, right_;
  std::vector<int64_t> dilations_;
};

class SinkRule final : public MaskRule {
 public:
  explicit SinkRule(int64_t n) : seen_{0, n} {}

  void key_ranges(MaskHead, IndexRange, KeyRanges& keys) const override { keys.push_back(seen_); }
  Coverage coverage(MaskHead, IndexRange, IndexRange keys) const override {
    if (keys.past <= seen_.past) return Coverage::full;
    return keys.first >= seen_.past ? Coverage::empty : Coverage::partial;
  }
  uint64_t row_bits(MaskHead, int64_t, int64_t key) const override { return bits_of(seen_, key); }

 private:
  IndexRange seen_;
};

class Sinks final : public MaskPart {
 public:
  explicit Sinks(int64_t n) : n_(n) {
    if (n < 0) throw ValueError(kMask, "a number of sinks of at least 0", std::to_string(n));
  }
  std::string text() const override { return "sinks:" + std::to_string(n_); }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    return std::make_unique<SinkRule>(std::min(n_, shape.keys));
  }
  std::optional<PositionReach> reach() const override { return reach_of(n_); }

 private:
  int64_t n_;
};

// Queries at the tokens see all keys, and all queries see the keys at the tokens.
class GlobalRule final : public MaskRule {
 public:
  GlobalRule(const MaskShape& shape, const std::vector<int64_t>& tokens)
      : shape_(shape), tokens_(tokens) {}

  void key_ranges(MaskHead, IndexRange queries, KeyRanges& keys) const override {
    if (count(positions(queries)) > 0) return keys.push_back({0, shape_.keys});
    for (const int64_t token : tokens_) append(keys, {token, token + 1});
  }
  Coverage coverage(MaskHead, IndexRange queries, IndexRange keys) const override {
    const int64_t rows = count(positions(queries)), columns = count(keys);
    if (rows == queries.size() || columns == keys.size()) return Coverage::full;
    return rows + columns == 0 ? Coverage::empty : Coverage::partial;
  }
  uint64_t row_bits(MaskHead, int64_t query, int64_t key) const override {
    uint64_t bits = 0;
    read_rows({}, {query, query + 1}, key, &bits);
    return bits;
  }
  void read_rows(MaskHead, IndexRange queries, int64_t key, uint64_t* rows) const override {
    uint64_t bits = 0;  // of a query that is not among the tokens
    for_each({key, key + 64}, [&](int64_t n) { bits |= uint64_t{1} << n; });
    std::fill_n(rows, queries.size(), bits);
    for_each(positions(queries), [&](int64_t n) { rows[n] = ~uint64_t{0}; });
  }

 private:
  IndexRange positions(IndexRange queries) const {
    return {queries.first + shape_.offset(), queries.past + shape_.offset()};
  }
  std::vector<int64_t>::const_iterator at(int64_t token) const {
    return std::lower_bound(tokens_.begin(), tokens_.end(), token);
  }
  int64_t count(IndexRange range) const { return at(range.past) - at(range.first); }
  // Calls f(n) for each token `range.first` + n.
  template <class F>
  void for_each(IndexRange range, F&& f) const {
    for (auto token = at(range.first); token != tokens_.end() && *token < range.past; ++token) {
      f(*token - range.first);
    }
  }

  MaskShape shape_;
  std::vector<int64_t> tokens_;
};

class Global final : public MaskPart {
 public:
  explicit Global(std::vector<int64_t> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end());
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
    if (tokens_.empty() || tokens_.front() >= 0) return;
    throw ValueError(kMask, "global tokens of at least 0", std::to_string(tokens_.front()));
  }
  std::string text() const override {
    std::string text = "global:";
    for (const int64_t token : tokens_) {
      text += (token == tokens_.front() ? "" : ",") + std::to_string(token);
    }
    return text;
  }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const auto past = std::lower_bound(tokens_.begin(), tokens_.end(), shape.keys);
    return std::make_unique<GlobalRule>(shape, std::vector<int64_t>(tokens_.begin(), past));
  }
  std::optional<PositionReach> reach() const override {
    // A query among the tokens sees all later keys. If the tokens are the first n, it sees only
    // these of its past.
    const auto n = static_cast<int64_t>(tokens_.size());
    PositionReach reach{.past = {.exact = false}};
    if (tokens_.empty() || tokens_.back() == n - 1) reach = reach_of(n);
    reach.hides_later = tokens_.empty();
    return reach;
  }

 private:
  std::vector<int64_t> tokens_;
};

}  // namespace

AttentionMask::AttentionMask() {
  static const MaskTermPtr everything = leaf(std::make_shared<Window>(std::nullopt, std::nullopt));
  term_ = everything;
}
AttentionMask AttentionMask::window(Side left, Side right) {
  return AttentionMask(std::make_shared<Window>(left, right));
}
AttentionMask AttentionMask::dilated_window(Side left, Side right, std::vector<int64_t> dilations) {
  return AttentionMask(std::make_shared<DilatedWindow>(left, right, std::move(dilations)));
}
AttentionMask AttentionMask::global(std::vector<int64_t> tokens) {
  return AttentionMask(std::make_shared<Global>(std::move(tokens)));
}
AttentionMask AttentionMask::sinks(int64_t n) { return AttentionMask(std::make_shared<Sinks>(n)); }

}  // namespace sash
