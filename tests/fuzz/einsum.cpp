// An equation of einsum. The last bytes are the shapes of its operands.
#include <sash/ops/linalg/einsum.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"...", "->", ",", " ", "ij", "jk",      "ii",
                                     "bij", "a",  "Z", ".", "-",  "i,j->ij", "0"};

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const char* equation :
       {"ij,jk->ik", "ii->i", "...ij,...jk", "i,i->", "bij,bjk->bik", "ij->ji"}) {
    all.push_back(std::string(equation) + std::string("\2\2\2\2\2\2\2\2\2\2", 10));
  }
  return all;
}

void run(Bytes& bytes) {
  std::vector<Tensor> operands;
  const int count = bytes.ConsumeIntegralInRange(1, 4);
  for (int i = 0; i < count; ++i) {
    Shape shape;
    const int rank = bytes.ConsumeIntegralInRange(0, 5);
    for (int axis = 0; axis < rank; ++axis) {
      shape.push_back(bytes.ConsumeIntegralInRange<int64_t>(0, 3));
    }
    operands.push_back(ones(shape, {.device = kCPU}).requires_grad_());
  }
  const Tensor y = einsum(bytes.ConsumeRemainingBytesAsString(), operands);
  if (y.requires_grad()) sum(y).backward();
}

}  // namespace sash::fuzz
