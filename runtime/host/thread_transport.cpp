// Mailboxes between threads (runtime/host/thread_transport.hpp).
#include "runtime/host/thread_transport.hpp"

#include <fmt/format.h>

#include <cstring>

#include "planner/base/check.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll {

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadWorld& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int world() const override { return shared_.world_; }
  void abandon() override { shared_.abandon(); }
  bool is_abandoned() const override { return shared_.is_abandoned(); }

  void exchange(const Members& members, const std::vector<std::span<const std::byte>>& send,
                const std::vector<std::span<std::byte>>& receive) override {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i != members.self) shared_.send(rank_, members.ranks[i], {send[i].begin(), send[i].end()});
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i == members.self) continue;
      const auto message = shared_.receive(members.ranks[i], rank_);
      CHECK(message.size() == receive[i].size(), "a message of another size than its receiver expects");
      std::copy(message.begin(), message.end(), receive[i].begin());
    }
  }

 private:
  ThreadWorld& shared_;
  const int rank_;
};

std::unique_ptr<Transport> ThreadWorld::connect(int rank) { return std::make_unique<ThreadTransport>(*this, rank); }

void ThreadWorld::send(int from, int to, Message message) {
  const std::lock_guard lock(mutex_);
  boxes_[{from, to}].push_back(std::move(message));
  changed_.notify_all();
}

ThreadWorld::Message ThreadWorld::receive(int from, int to) {
  std::unique_lock lock(mutex_);
  auto& box = boxes_[{from, to}];
  const bool there = changed_.wait_for(lock, timeout_, [&] { return !box.empty() || abandoned_; });
  if (!there) throw MachineError(fmt::format("waited {:g} s for rank {}", timeout_.count(), from));
  if (box.empty()) throw MachineError(fmt::format("waits for rank {}, but a rank has failed", from));
  Message message = std::move(box.front());
  box.pop_front();
  return message;
}

void ThreadWorld::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

bool ThreadWorld::is_abandoned() {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

void barrier(Transport& transport) {
  const Members all = members_of(transport.rank(), transport.world(), 1);
  transport.exchange(all, std::vector<std::span<const std::byte>>(all.size()),
                     std::vector<std::span<std::byte>>(all.size()));
}

Members members_of(int rank, int size, int stride) {
  Members members;
  members.self = static_cast<std::size_t>(rank / stride % size);
  const int first = rank - static_cast<int>(members.self) * stride;
  for (int i = 0; i < size; ++i) members.ranks.push_back(first + i * stride);
  return members;
}

}  // namespace plimsoll
