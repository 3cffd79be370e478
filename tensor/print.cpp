#include <algorithm>
#include <cmath>
#include <ostream>

#include "../core/backend/dispatch.h"
#include "../core/readable.h"
#include "autograd/node.h"
#include "tensor.h"
#include "tensor_impl.h"

namespace sash {
namespace {

constexpr int64_t kMostElements = 1000;  // more are abridged
constexpr int64_t kEdge = 3;             // indices shown at each end of an abridged axis
constexpr int kLineWidth = 80;
constexpr int64_t kEllipsis = -1;

/// The indices of an axis that are printed, `kEllipsis` for those left out.
std::vector<int64_t> shown_indices(int64_t extent, bool abridged) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < extent; ++i) {
    if (abridged && extent > 2 * kEdge && i == kEdge) {
      indices.push_back(kEllipsis);
      i = extent - kEdge;
    }
    indices.push_back(i);
  }
  return indices;
}

template <class T>
void gather(const TensorView& view, const T* element, int axis, bool abridged,
            std::vector<T>& values) {
  if (axis == view.rank()) return values.push_back(*element);
  for (const int64_t i : shown_indices(view.shape[axis], abridged)) {
    if (i != kEllipsis) gather(view, element + i * view.strides[axis], axis + 1, abridged, values);
  }
}

/// Whole numbers without a point, else four decimals, with an exponent if those would not do.
std::pair<std::chars_format, int> floating_format(const std::vector<double>& values) {
  bool whole = true;
  double low = INFINITY;
  double high = 0;
  for (const double value : values) {
    if (!std::isfinite(value) || value == 0) continue;
    whole &= value == std::floor(value);
    low = std::min(low, std::abs(value));
    high = std::max(high, std::abs(value));
  }
  if (high < 1e8 && whole) return {std::chars_format::fixed, 0};
  const bool plain = high < 1e8 && low >= 1e-4 && high <= 1000 * low;
  return {plain ? std::chars_format::fixed : std::chars_format::scientific, 4};
}

std::vector<std::string> floating_texts(const std::vector<double>& values) {
  const auto [format, digits] = floating_format(values);
  std::vector<std::string> texts;
  for (const double value : values) {
    texts.push_back(std::isnan(value) ? "nan" : to_text(value, format, digits));
  }
  return texts;
}

template <class T>
std::vector<std::string> element_texts(const std::vector<T>& values) {
  std::vector<std::string> texts;
  if constexpr (std::is_same_v<T, bool>) {
    for (const bool value : values) texts.emplace_back(value ? "true" : "false");
  } else if constexpr (std::is_integral_v<T>) {
    for (const T value : values) texts.push_back(std::to_string(value));
  } else {
    std::vector<double> wide;
    for (const T value : values) wide.push_back(static_cast<double>(static_cast<float>(value)));
    if constexpr (std::is_same_v<T, double>) wide = values;
    texts = floating_texts(wide);
  }
  return texts;
}

/// Writes texts, given in row-major order, as nested lists with aligned columns.
class ListWriter {
 public:
  ListWriter(const Shape& shape, bool abridged, std::vector<std::string> texts)
      : shape_(shape), abridged_(abridged), texts_(std::move(texts)) {
    for (const std::string& text : texts_) width_ = std::max(width_, text.size());
  }

  std::string write() {
    write_axis(0);
    return std::move(out_);
  }

 private:
  void write_axis(int axis) {
    if (axis == shape_.rank()) {
      const std::string& text = texts_[next_++];
      out_.append(width_ - text.size(), ' ') += text;
      return;
    }
    out_ += '[';
    int64_t written = 0;
    for (const int64_t i : shown_indices(shape_[axis], abridged_)) {
      if (written > 0) separate(axis, written);
      ++written;
      if (i == kEllipsis) {
        out_ += "...";
      } else {
        write_axis(axis + 1);
      }
    }
    out_ += ']';
  }

  void separate(int axis, int64_t written) {
    const int indent = axis + 1;
    const int deeper = shape_.rank() - indent;
    const auto per_line = std::max<int64_t>(1, (kLineWidth - indent) / int64_t(width_ + 2));
    if (deeper == 0 && written % per_line != 0) {
      out_ += ", ";
      return;
    }
    out_ += ',';
    out_.append(static_cast<size_t>(std::max(deeper, 1)), '\n');
    out_.append(static_cast<size_t>(indent), ' ');
  }

  const Shape& shape_;
  bool abridged_;
  std::vector<std::string> texts_;
  size_t width_ = 0;
  size_t next_ = 0;
  std::string out_;
};

std::string elements(const Tensor& tensor) {
  if (tensor.numel() == 0) return "[]";
  const NoGradGuard no_grad;
  const Tensor host = tensor.device().is_cpu() ? tensor : tensor.to(kCPU);
  const TensorView view = host.tensor_view();
  const bool abridged = tensor.numel() > kMostElements;
  std::string text;
  dispatch_all(view.dtype, "to_string", [&]<class T>(TypeTag<T>) {
    std::vector<T> values;
    gather(view, static_cast<const T*>(view.data), 0, abridged, values);
    text = ListWriter(view.shape, abridged, element_texts(values)).write();
  });
  return text;
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = elements(tensor);
  text += ' ';
  text += name(tensor.dtype());
  text += ' ' + to_string(tensor.shape()) + ' ' + to_string(tensor.device());
  if (const auto& node = tensor.impl().grad_fn()) {
    text += " grad_fn=<" + std::string(node->name()) + ">";
  } else if (tensor.requires_grad()) {
    text += " requires_grad";
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << to_string(tensor);
}

}  // namespace sash
