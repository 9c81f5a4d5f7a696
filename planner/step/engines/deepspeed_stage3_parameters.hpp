// Where is each parameter at ZeRO stage 3, and what does it cost to have it whole?
//
// Every parameter is cut by itself into n parts of p = ceil(numel / n) elements, n = ranks of its communicator.  One gather
// call serves one communicator:
//   one parameter      a buffer of n p elements, which becomes the parameter
//   two or more        one flat buffer of sum(n p); at the first wait on any of them all are copied out (numel each), and the
//                      flat buffer dies when the last of them has been waited for
//   as an all-reduce   a zeroed flat buffer of sum(n p) into which each rank puts its parts; parameters are views of it
//   n = 1              nothing moves: the parameter is its own part
// Parameters that live on the CPU are copied to the device first: the copy of a lone part lives until the wait, those of
// several only until they stand in the flat buffer.
// Source: DeepSpeed 0.19.8, checked against allocator traces.
#pragma once

#include <memory>
#include <vector>

#include "planner/spec/plan.hpp"
#include "planner/step/layers/module.hpp"

namespace plimsoll::zero3 {

/// The streams that the engine uses beside the compute stream; all the same without overlap_comm.
struct Lanes {
  Lane gather = Lane::gather;
  Lane reduce = Lane::reduce;
};
Lanes lanes_of(const ZeroOptions& options);

/// One process group as the framework sees it: the same ranks may form two of them, and calls never mix them.
struct Communicator {
  int index = 0;  ///< 0: where zero.Init sharded; 1: parameters made later by the engine; 2: experts
  GroupId group = 0;
  std::int64_t ranks = 1;
  std::int64_t rank = 0;  ///< this rank's place
};

struct GatherCall;

enum class Presence : std::uint8_t { sharded, in_flight, available };

struct ShardedParameter {
  Parameter* parameter = nullptr;
  Communicator communicator;
  std::int64_t part = 0;  ///< p, elements of a rank's part
  Tensor shard;           ///< this rank's part
  bool on_host = false;   ///< the part lives in host memory
  bool persistent = false;
  Presence presence = Presence::sharded;
  std::shared_ptr<GatherCall> call;  ///< until it has been waited for
  std::vector<int> users;            ///< modules between their pre and post hook

  std::int64_t numel() const { return parameter->numel(); }
  /// n p, with the padding of the last part.
  std::int64_t padded() const { return part * communicator.ranks; }
  /// Whether this rank's part holds any element at all: small parameters do not reach the last ranks.
  bool has_elements() const { return part * communicator.rank < numel(); }
};

/// A gather in flight.
struct GatherCall {
  std::vector<Tensor> flats;  ///< one a type
  Tensor shard_copy;          ///< of a parameter on the CPU
  /// Parameters to copy out at the first wait, and which buffer each is in.
  std::vector<std::pair<int, std::size_t>> to_split;
};

/// All parameters of the model by index (construction order, as their ids).
class ShardedParameters {
 public:
  ShardedParameters(Trace& trace, const Plan& plan, int rank, TorchModel& model);

  std::vector<ShardedParameter>& all() { return parameters_; }
  ShardedParameter& operator[](int index) { return parameters_[static_cast<std::size_t>(index)]; }
  ShardedParameter& of(const Parameter& parameter) { return (*this)[parameter.index]; }

  /// Issues the gathers of `indices` (ascending; sharded ones), one call per communicator, on the gather lane.
  void gather(const std::vector<int>& indices);
  /// Waits for a parameter in flight: it is available afterwards.
  void wait(int index);
  /// Drops the full parameter.
  void release(int index);
  /// Gathers parameters at once on the compute stream (engine initialization, end of the step, saving): a call for each, but
  /// copies of parts from host memory live until all have arrived.
  void gather_now(const std::vector<int>& indices);
  /// Makes the persistent parameters whole.
  void gather_persistent();

  Trace& trace() { return trace_; }
  const Lanes& lanes() const { return lanes_; }
  /// Number of calls and elements moved so far (groups of one rank do not count).
  std::int64_t gather_calls() const { return gather_calls_; }
  std::int64_t gathered_elements() const { return gathered_elements_; }

 private:
  Communicator communicator_of(const Parameter& parameter, int rank) const;
  void gather_call(const std::vector<int>& indices);
  void take_alone(ShardedParameter& sharded);
  void gather_alone(int index, const std::shared_ptr<GatherCall>& call);
  void gather_flat(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call);
  void gather_type(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call);
  void gather_by_all_reduce(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call);
  void concatenate(const std::vector<Tensor>& shards, const Tensor& flat);
  Tensor shard_on_device(const ShardedParameter& parameter);
  void split(const GatherCall& call);
  void wait_for_old_events();
  void collective(CollectiveKind kind, const Communicator& communicator, const Tensor& from, const Tensor& to);

  Trace& trace_;
  const Plan& plan_;
  Lanes lanes_;
  std::vector<ShardedParameter> parameters_;
  OpId last_gather_ = 0;      ///< the last op on the gather lane
  std::vector<OpId> events_;  ///< that op at each wait
  std::int64_t gather_calls_ = 0;
  std::int64_t gathered_elements_ = 0;
};

}  // namespace plimsoll::zero3
