#include "stream.h"

#include "tensor_impl.h"

namespace sash {

void record_stream(const Tensor& x, Stream stream) {
  if (!x.defined()) throw ValueError("record_stream", "a tensor", "an undefined one");
  const Storage& storage = *x.impl().storage;
  if (storage.is_foreign() || storage.bytes() == 0) return;
  backend(storage.device().type).record_stream(storage.data(), storage.device(), stream);
}

}  // namespace sash
