// How do ranks exchange bytes?  One primitive, a message from every member of a group to every other, under all collectives;
// carried by threads of one process (thread_transport) or by MPI processes (runtime/mpi).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace plimsoll {

/// The ranks of one group, in order, and this rank's place among them.
struct Members {
  std::vector<int> ranks;
  std::size_t self = 0;
  std::size_t size() const { return ranks.size(); }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  /// send[i] goes to member i, receive[i] comes from member i; a rank's own part is not moved.  Members call in the same
  /// order.  Sizes of a message agree on both sides.
  /// @throws MachineError if a peer does not answer within the timeout, or has failed
  virtual void exchange(const Members& members, const std::vector<std::span<const std::byte>>& send,
                        const std::vector<std::span<std::byte>>& receive) = 0;
  /// Tells the others that this rank cannot go on.
  virtual void abandon() = 0;
  /// True once a rank has said so; false where its end is this process's end too.
  virtual bool is_abandoned() const { return false; }
};

/// A message of no bytes from everyone to everyone.
void barrier(Transport& transport);
/// The members of the group of `size` ranks, `stride` apart, to which `rank` belongs.
Members members_of(int rank, int size, int stride);

}  // namespace plimsoll
