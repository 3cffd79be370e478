#include "token_dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "../../tensor/factories.h"
#include "../../tensor/io/mapped_file.h"
#include "../../tensor/io/replacement_file.h"

namespace sash::nn::data {
namespace {

static_assert(std::endian::native == std::endian::little);

int bytes_of_id(const char* op, int bits) {
  if (bits == 8 || bits == 16 || bits == 32) return bits / 8;
  throw ValueError(op, "8, 16 or 32 bits", std::to_string(bits));
}

template <class T>
void copy_ids(const void* ids, int64_t first, std::span<int64_t> to) {
  const char* from = static_cast<const char*>(ids) + first * static_cast<int64_t>(sizeof(T));
  for (int64_t& id : to) {
    T value;
    std::memcpy(&value, from, sizeof(T));  // a header may leave ids misaligned
    id = static_cast<int64_t>(value);
    from += sizeof(T);
  }
}

}  // namespace

Tokens::Tokens(std::vector<int64_t> ids) {
  for (const int64_t id : ids) {
    if (id < 0) throw ValueError("Tokens", "ids of 0 or more", std::to_string(id));
  }
  const auto owner = std::make_shared<const std::vector<int64_t>>(std::move(ids));
  ids_ = owner->data();
  size_ = static_cast<int64_t>(owner->size());
  bytes_ = sizeof(int64_t);
  owner_ = owner;
}

Tokens Tokens::from_file(const std::string& path, int bits, int64_t skip) {
  constexpr const char* kOp = "Tokens::from_file";
  Tokens tokens;
  tokens.bytes_ = bytes_of_id(kOp, bits);
  const auto file = std::make_shared<const MappedFile>(kOp, path);
  const auto size = static_cast<int64_t>(file->bytes().size());
  if (skip < 0 || skip > size) {
    throw ValueError(kOp, "a skip in [0, " + std::to_string(size) + "]", std::to_string(skip));
  }
  if ((size - skip) % tokens.bytes_ != 0) {
    throw FormatError(kOp, "whole ids of " + std::to_string(bits) + " bits in '" + path + "'",
                      std::to_string(size - skip) + " bytes");
  }
  tokens.ids_ = file->bytes().data() + skip;
  tokens.size_ = (size - skip) / tokens.bytes_;
  tokens.owner_ = file;
  return tokens;
}

Tokens Tokens::from_bytes(std::string_view text) {
  const auto owner = std::make_shared<const std::string>(text);
  Tokens tokens;
  tokens.ids_ = owner->data();
  tokens.size_ = static_cast<int64_t>(owner->size());
  tokens.bytes_ = 1;
  tokens.owner_ = owner;
  return tokens;
}

void Tokens::read(int64_t first, std::span<int64_t> to) const {
  if (!owner_) throw ValueError("Tokens::read", "tokens", "tokens that were moved from");
  const auto count = static_cast<int64_t>(to.size());
  if (first < 0 || first > size_ - count) {
    throw IndexError("Tokens::read", "ids in [0, " + std::to_string(size_) + ")",
                     "[" + std::to_string(first) + ", " + std::to_string(first + count) + ")");
  }
  switch (bytes_) {
    case 1:
      return copy_ids<uint8_t>(ids_, first, to);
    case 2:
      return copy_ids<uint16_t>(ids_, first, to);
    case 4:
      return copy_ids<uint32_t>(ids_, first, to);
    default:
      return copy_ids<int64_t>(ids_, first, to);
  }
}

void save_tokens(const std::string& path, std::span<const int64_t> ids, int bits) {
  const auto bytes = static_cast<size_t>(bytes_of_id("save_tokens", bits));
  for (const int64_t id : ids) {
    if (id >= 0 && id < int64_t{1} << bits) continue;
    throw ValueError("save_tokens", "ids of " + std::to_string(bits) + " bits", std::to_string(id));
  }
  ReplacementFile file("save_tokens", path);
  std::vector<char> block;
  constexpr size_t kBlock = size_t{1} << 20;
  for (size_t first = 0; first < ids.size(); first += kBlock) {
    const size_t count = std::min(kBlock, ids.size() - first);
    block.resize(count * bytes);
    for (size_t i = 0; i < count; ++i) std::memcpy(&block[i * bytes], &ids[first + i], bytes);
    file.write(block.data(), block.size());
  }
  file.commit();
}

TokenDataset::TokenDataset(Tokens tokens, int64_t context, TokenDatasetOptions options)
    : tokens_(std::move(tokens)),
      context_(context),
      stride_(options.stride == 0 ? context : options.stride),
      size_(0) {
  constexpr const char* kOp = "TokenDataset";
  if (context < 1) throw ValueError(kOp, "a context of 1 or more", std::to_string(context));
  if (stride_ < 1) throw ValueError(kOp, "a stride of 0 or more", std::to_string(stride_));
  if (tokens_.size() <= context) {
    throw ValueError(kOp, "more than " + std::to_string(context) + " tokens, the context",
                     std::to_string(tokens_.size()));
  }
  size_ = (tokens_.size() - context - 1) / stride_ + 1;
}

Batch TokenDataset::get(int64_t index) const {
  const Batch one = batch(std::span(&index, 1));
  return {one[0][0], one[1][0]};
}

Batch TokenDataset::batch(std::span<const int64_t> indices) const {
  const Shape shape{static_cast<int64_t>(indices.size()), context_};
  const TensorOptions on_host{.dtype = DType::int64, .device = kCPU};
  Batch batch{empty(shape, on_host), empty(shape, on_host)};
  const auto width = static_cast<size_t>(context_);
  int64_t* inputs = batch[0].data<int64_t>();
  int64_t* targets = batch[1].data<int64_t>();
  for (const int64_t index : indices) {
    if (index < 0 || index >= size_) {
      throw IndexError("TokenDataset", "an index in [0, " + std::to_string(size_) + ")",
                       std::to_string(index));
    }
    tokens_.read(index * stride_, std::span(inputs, width));
    tokens_.read(index * stride_ + 1, std::span(targets, width));
    inputs += width;
    targets += width;
  }
  return batch;
}

}  // namespace sash::nn::data
