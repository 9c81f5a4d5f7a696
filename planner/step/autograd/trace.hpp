// How is the step written down?  By running the model's forward on tensors without data: each operation records its op,
// allocates its outputs and says what it keeps; memory is freed when the last reference to a storage goes, as in PyTorch.
// Nothing pairs an allocation with a free by hand: lifetimes follow from who holds what.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "planner/base/check.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

class Trace;

/// Memory shared by a tensor and its views, counted by reference; and the last ops that wrote and read it.
struct Storage {
  static constexpr OpId none = ~OpId{0};
  Trace* trace = nullptr;
  BufferId buffer = 0;
  std::uint32_t references = 0;
  const char* name = "";
  OpId write = none, read = none;
  Lane write_lane = Lane::compute, read_lane = Lane::compute;
  Lane pool = Lane::compute;
};

/// A counted reference to a storage; the last one to go records the Free.
class StorageRef {
 public:
  StorageRef() = default;
  explicit StorageRef(Storage* storage) : storage_(storage) { acquire(); }
  StorageRef(const StorageRef& other) : storage_(other.storage_) { acquire(); }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageRef() { release(); }

  void reset() {
    release();
    storage_ = nullptr;
  }
  explicit operator bool() const { return storage_ != nullptr; }
  BufferId buffer() const { return storage_->buffer; }
  std::uint32_t references() const { return storage_->references; }

 private:
  friend class Trace;
  void acquire() {
    if (storage_) ++storage_->references;
  }
  void release();

  Storage* storage_ = nullptr;
};

/// A tensor without data: a storage (shared with its views), a shape and a type.
struct Tensor {
  StorageRef storage;
  Shape shape;
  std::int64_t offset = 0;  ///< of its first element in the storage
  DType dtype = DType::bf16;
  bool permuted = false;  ///< its memory order is not that of its shape (heads-major data seen token-major)
  bool view = false;      ///< shares its base's storage; PyTorch never adds a gradient into a view in place

  explicit operator bool() const { return static_cast<bool>(storage); }
  /// Lets go of the storage: no tensor is left, whatever its shape was.
  void reset() { storage.reset(); }
  std::int64_t numel() const { return shape.numel(); }
  Bytes bytes() const { return Elements(numel()) * dtype; }
  BufferId buffer() const { return storage.buffer(); }
  /// The same storage under another shape of as many elements.
  Tensor view_as(Shape other) const {
    Tensor result = *this;
    result.shape = other;
    result.view = true;
    return result;
  }
  /// A part of the same storage, from element `first` of this tensor on.
  Tensor part(std::int64_t first, Shape other) const {
    Tensor result = view_as(other);
    result.offset += first;
    return result;
  }
};

/// Sets a value and puts the old one back at the end of the scope.
template <class T>
class Scoped {
 public:
  Scoped(T& place, T value) : place_(place), old_(std::exchange(place, std::move(value))) {}
  ~Scoped() { place_ = std::move(old_); }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  T& place_;
  T old_;
};

/// Which entry of a table equals a given one?  The table holds each once: a step launches the same few hundred kernels over and
/// over.
class EntryIndex {
 public:
  /// The index of the table's entry that equals `entry`, else of a new one at its end.
  template <class Entry>
  std::uint32_t find_or_add(std::vector<Entry>& table, std::uint64_t hash, const Entry& entry) {
    const auto mixed = static_cast<std::uint32_t>((hash * 0x9e3779b97f4a7c15ULL) >> 32);
    Slot& slot = find(mixed, [&](std::uint32_t index) { return table[index] == entry; });
    if (slot.index != none) return slot.index;
    const auto index = static_cast<std::uint32_t>(table.size());
    table.push_back(entry);
    slot = {mixed, index};
    if (table.size() * 2 > slots_.size()) grow();
    return index;
  }

 private:
  static constexpr std::uint32_t none = ~0u;
  struct Slot {
    std::uint32_t hash = 0, index = none;
  };
  /// The slot of the entry of this hash that is the same, else the free one where it would stand.
  template <class Same>
  Slot& find(std::uint32_t hash, Same same) {
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[at];
      if (slot.index == none || (slot.hash == hash && same(slot.index))) return slot;
    }
  }
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(1024);  // a power of two, at most half of them taken
};

/// Records ops and buffers into a RankProgram.
class Trace {
 public:
  explicit Trace(RankProgram& program) : program_(program) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Where the next op belongs; set through Scoped.
  Lane lane = Lane::compute;  ///< stream on which ops run and from whose pool tensors come
  Issuer issuer = Issuer::forward;
  Category category = Category::activations;
  std::int16_t layer = -1;
  std::uint16_t micro_batch = 0;
  bool compiled = false;  ///< launches come from compiled code

  /// Allocates a tensor on the current lane's pool.
  Tensor empty(const Shape& shape, DType dtype, const char* name) { return empty(shape, dtype, name, category); }
  Tensor empty(const Shape& shape, DType dtype, const char* name, Category what);
  /// Allocates in host memory.
  Tensor host_empty(const Shape& shape, DType dtype, const char* name, Category what, bool pinned);

  /// Records a launch on the current lane.  Hazards with other lanes become edges.
  void compute(const Kernel& kernel, std::initializer_list<const Tensor*> reads,
               std::initializer_list<const Tensor*> writes, const char* role);
  /// The same, with what it computes.
  void compute(const Kernel& kernel, const Call& call, std::initializer_list<const Tensor*> reads,
               std::initializer_list<const Tensor*> writes, const char* role);
  /// The same for a list of tensors in one launch (foreach kernels, bucket copies); at most 255 of each.
  void compute(const Kernel& kernel, const std::vector<const Tensor*>& reads, const std::vector<const Tensor*>& writes,
               const char* role);
  void collective(const Collective& collective, std::initializer_list<const Tensor*> reads,
                  std::initializer_list<const Tensor*> writes, const char* role);
  /// Any other action (host work, syncs, copies) with the buffers it touches.
  template <class Taken>
  OpId record(const Taken& action, Lane on, std::initializer_list<const Tensor*> reads,
              std::initializer_list<const Tensor*> writes, const char* role) {
    append(on, {reads.begin(), reads.size()}, {writes.begin(), writes.size()}, role).action = action;
    return next_op() - 1;
  }
  /// A copy of `size` bytes between host and device on the current lane; which of the two is where, and whether the host's side
  /// is pinned, the buffers say.  One from or to pageable memory goes through the driver's staging buffer: the host waits for
  /// it, as it does for a pinned one if `blocking`.
  void host_copy(const Tensor& from, const Tensor& to, Bytes size, const char* role, bool blocking = false);
  void host_work(HostWorkKind kind, std::int64_t count, const char* role) {
    record(HostWork{kind, count, Bytes(0)}, Lane::host, {}, {}, role);
  }
  /// Makes the next op of `waiting` wait for the last op recorded on `on`.
  void wait_for(Lane waiting, Lane on);
  /// Makes the next op of `waiting` wait for `op`.
  void wait_for(Lane waiting, OpId op) { pending_[static_cast<std::size_t>(waiting)].push_back(op); }

  /// Makes room for so many ops in all, and what comes with them.
  void reserve(std::size_t ops);

  /// Ops recorded from here on belong to this phase (a literal).
  void begin_phase(const char* name);
  void end_phases();
  /// The job is over: what is still held stays allocated.
  void stop();
  /// Keeps text alive as long as the program.
  const char* intern(std::string text);

  /// True if the tensor lives in host memory.
  bool on_host(const Tensor& tensor) const { return program_.buffers[tensor.buffer()].pool == Lane::host; }

  RankProgram& program() { return program_; }
  OpId next_op() const { return static_cast<OpId>(program_.ops.size()); }

 private:
  friend class StorageRef;
  static constexpr OpId none = Storage::none;

  using Tensors = std::span<const Tensor* const>;

  Op& new_op(Lane on, const char* role);
  Tensor allocate(const Shape& shape, DType dtype, const char* name, Category what, Lane pool, bool pinned);
  template <class Use>
  std::uint32_t add_operands(Tensors tensors, Use note);
  KernelId add_kernel(const Kernel& kernel);
  /// An op without its action, which is best made where it stays: a copy waits until what was just written is there.
  Op& append(Lane on, Tensors reads, Tensors writes, const char* role);
  void free(Storage* storage);
  void add_pending(Op& op);
  void add_edge(Op& op, OpId from, Lane other);

  RankProgram& program_;
  EntryIndex kernels_, calls_;
  bool stopped_ = false;
  std::array<OpId, lane_count> last_on_lane_{none, none, none, none, none, none, none};
  // [waiting][on]: the latest op of `on` that some op of `waiting` already waits for
  std::array<std::array<OpId, lane_count>, lane_count> waited_{};
  std::array<std::vector<OpId>, lane_count> pending_;  // explicit waits for the next op of a lane
  std::vector<Storage*> free_storages_;
  std::deque<Storage> storages_;
};

inline void StorageRef::release() {
  if (storage_ && --storage_->references == 0) storage_->trace->free(storage_);
}

}  // namespace plimsoll
