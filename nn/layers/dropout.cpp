#include "../../ops/elementwise/dropout.h"

#include "../check.h"
#include "dropout.h"

namespace sash::nn {

Dropout::Dropout(double p) : p_(p) { check_probability("Dropout", "p", p); }

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, is_training()); }

std::string Dropout::describe() const { return "Dropout(" + to_text(p_) + ")"; }

}  // namespace sash::nn
