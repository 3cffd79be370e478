#include "gguf_blocks.h"

#include <array>
#include <cstring>
#include <utility>

#include "../../core/half.h"

namespace sash {
namespace {

// Blocks hold little-endian scales in float16 and packed integers; a nibble is half a byte.

constexpr int kSmall = 32, kSuper = 256;  // elements of a block, and of a block with sub-blocks

float half_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return float16::to_float(bits);
}

// Low nibbles are the first half of the block, high nibbles the second.
template <class F>
void decode_nibbles(const uint8_t* packed, float* values, F&& value) {
  for (int i = 0; i < kSmall / 2; ++i) {
    values[i] = value(packed[i] & 15);
    values[i + kSmall / 2] = value(packed[i] >> 4);
  }
}

// x = d (q - 8)
void decode_q4_0(const uint8_t* block, float* values) {
  const float d = half_at(block);
  decode_nibbles(block + 2, values, [d](int q) { return d * static_cast<float>(q - 8); });
}

// x = d q + m
void decode_q4_1(const uint8_t* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  decode_nibbles(block + 4, values, [d, m](int q) { return d * static_cast<float>(q) + m; });
}

// Adds the fifth bits, bit i of `high` for value i, to low nibbles.
template <class F>
void decode_fives(const uint8_t* high, const uint8_t* packed, float* values, F&& value) {
  uint32_t bits = 0;
  std::memcpy(&bits, high, sizeof bits);
  for (int i = 0; i < kSmall; ++i) {
    const int low = i < kSmall / 2 ? packed[i] & 15 : packed[i - kSmall / 2] >> 4;
    values[i] = value(low | static_cast<int>(bits >> i & 1) << 4);
  }
}

// x = d (q - 16)
void decode_q5_0(const uint8_t* block, float* values) {
  const float d = half_at(block);
  decode_fives(block + 2, block + 6, values, [d](int q) { return d * static_cast<float>(q - 16); });
}

// x = d q + m
void decode_q5_1(const uint8_t* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  decode_fives(block + 4, block + 8, values,
               [d, m](int q) { return d * static_cast<float>(q) + m; });
}

// x = d q
void decode_q8_0(const uint8_t* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < kSmall; ++i) {
    values[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
}

// x = d s q - m t: eight sub-blocks of 32, whose s and t have 6 bits each. Of the 12 bytes, the
// first four hold s 0 to 3 and the next four t 0 to 3 in their low 6 bits; the last four hold the
// low nibbles of s and t 4 to 7, whose high bits are the top two of the others. Q5_K has fifth bits
// of q in 32 bytes before the low nibbles: bit j of byte i for element i of sub-block j.
template <bool Fives>
void decode_k(const uint8_t* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  const uint8_t* const scales = block + 4;
  const uint8_t* const high = block + 16;
  const uint8_t* const packed = Fives ? high + kSmall : high;
  for (int j = 0; j < 8; ++j) {
    const int s = j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4);
    const int t = j < 4 ? scales[j + 4] & 63 : (scales[j + 4] >> 4) | (scales[j] >> 6 << 4);
    const float scale = d * static_cast<float>(s), offset = m * static_cast<float>(t);
    for (int i = 0; i < kSmall; ++i) {
      const uint8_t pair = packed[j / 2 * kSmall + i];
      int q = j % 2 == 0 ? pair & 15 : pair >> 4;
      if (Fives) q |= (high[i] >> j & 1) << 4;
      values[j * kSmall + i] = scale * static_cast<float>(q) - offset;
    }
  }
}

// x = d s (q - 32): sixteen sub-blocks of 16 with an 8-bit s. The low nibbles of q lie in 128
// bytes, the upper two bits in the next 64; each half of the block has 64 and 32 of these, of which
// byte i has elements i, i + 32, i + 64 and i + 96.
void decode_q6_k(const uint8_t* block, float* values) {
  const uint8_t* const scales = block + 192;
  const float d = half_at(block + 208);
  for (int element = 0; element < kSuper; ++element) {
    const int half = element / 128, part = element % 128 / 32, i = element % 32;
    const uint8_t low = block[half * 64 + part % 2 * 32 + i];
    const uint8_t high = block[128 + half * 32 + i];
    const int q = (part < 2 ? low & 15 : low >> 4) | ((high >> (2 * part) & 3) << 4);
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[element / 16]));
    values[element] = scale * static_cast<float>(q - 32);
  }
}

constexpr GgufFormat kFormats[] = {
    {0, "F32", 1, 4, DType::float32, nullptr},
    {1, "F16", 1, 2, DType::float16, nullptr},
    {2, "Q4_0", kSmall, 18, DType::float32, decode_q4_0},
    {3, "Q4_1", kSmall, 20, DType::float32, decode_q4_1},
    {6, "Q5_0", kSmall, 22, DType::float32, decode_q5_0},
    {7, "Q5_1", kSmall, 24, DType::float32, decode_q5_1},
    {8, "Q8_0", kSmall, 34, DType::float32, decode_q8_0},
    {12, "Q4_K", kSuper, 144, DType::float32, decode_k<false>},
    {13, "Q5_K", kSuper, 176, DType::float32, decode_k<true>},
    {14, "Q6_K", kSuper, 210, DType::float32, decode_q6_k},
    {26, "I32", 1, 4, DType::int32, nullptr},
    {27, "I64", 1, 8, DType::int64, nullptr},
    {28, "F64", 1, 8, DType::float64, nullptr},
    {30, "BF16", 1, 2, DType::bfloat16, nullptr},
};

// Those that are not read.
constexpr std::pair<uint32_t, std::string_view> kOthers[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {29, "IQ1_M"},  {34, "TQ1_0"}, {35, "TQ2_0"},   {39, "MXFP4"},
};

}  // namespace

const GgufFormat* gguf_format(uint32_t id) {
  for (const GgufFormat& format : kFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

std::string gguf_format_name(uint32_t id) {
  if (const GgufFormat* const format = gguf_format(id)) return std::string(format->name);
  for (const auto& [other, name] : kOthers) {
    if (other == id) return std::string(name);
  }
  return "format " + std::to_string(id);
}

}  // namespace sash
