#pragma once

#include <sash/core/backend/device.h>

/// Float32 multiplications and additions per second that the device can do at most. On the CPU:
/// fused multiply-adds of registers, by `num_threads()` threads; on CUDA: the best of some large
/// products.
double measured_peak(sash::Device device);
