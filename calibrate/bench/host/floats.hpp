// Where do the host's buffers lie?  At the beginning of a page each.  Vectors from the heap follow one another 16 bytes apart:
// where a destination begins 16 bytes behind its source, modulo a page, memcpy's string instruction finds each load behind a
// store to what seems the same address, and 64 KiB take 36 us in place of 1.3 (measured; 32 bytes apart 1.4).
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace plimsoll::calibrate {

template <class T>
struct OnAPage {
  using value_type = T;
  static constexpr std::align_val_t page{4096};

  OnAPage() = default;
  template <class Other>
  OnAPage(const OnAPage<Other>& /*other*/) {}  // NOLINT(google-explicit-constructor): allocators convert

  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), page)); }
  void deallocate(T* data, std::size_t /*count*/) { ::operator delete(data, page); }
  bool operator==(const OnAPage& /*other*/) const { return true; }
};

using Floats = std::vector<float, OnAPage<float>>;

}  // namespace plimsoll::calibrate
