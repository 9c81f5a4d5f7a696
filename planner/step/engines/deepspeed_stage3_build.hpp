// How does a model come to be sharded at ZeRO stage 3?
//
//   zero_init   each parameter is made whole on the device (6 bytes per element while it is converted, 2 after); when its
//               module's constructor returns, rank 0 broadcasts it and each rank keeps its part.  A tied head is made and
//               sharded like any other parameter and dropped at engine initialization.
//   gpu         the whole model stands on the device in 16 bits (a tied head for a moment beside it); engine initialization
//               broadcasts and cuts one parameter after the other
//   cpu         the whole model stands in host memory in fp32; engine initialization casts it there, moves it to the device
//               and cuts it
// AutoEP shards the Hugging Face model first; the engine then makes this rank's experts and the routers anew, for all
// layers before the parts of the originals go.
// Source: DeepSpeed 0.19.8, measured phases.
#pragma once

#include <optional>
#include <vector>

#include "planner/step/engines/deepspeed_stage3_parameters.hpp"

namespace plimsoll::zero3 {

class ModelBuilder {
 public:
  ModelBuilder(Trace& trace, const Scenario& scenario, ShardedParameters& parameters);

  /// Phase model_built.
  void build();
  /// The beginning of engine initialization: afterwards every parameter has its part.
  void shard();

 private:
  /// A parameter of the Hugging Face model as it is declared.
  struct Declared {
    const ParameterDecl* decl = nullptr;
    const char* name = "";
    Tensor whole;
    Tensor shard;
  };

  void add_adapters();
  void cast_adapters(DType dtype);
  void construct_under_zero_init();
  void construct_whole(bool on_host);
  void make_whole(Declared& declared);
  void cut(Declared& declared);
  Tensor empty_shard(std::int64_t elements, DType dtype);
  void replace_experts();
  bool on_host() const { return scenario_.plan.offload.parameters != OffloadDevice::none; }

  Trace& trace_;
  const Scenario& scenario_;
  ShardedParameters& parameters_;
  DType dtype_;
  std::vector<Declared> declared_;
  std::optional<Declared> head_;  ///< a tied head, made like any other parameter
  std::vector<Tensor> adapters_;
  std::vector<Tensor> small_;  ///< rotary frequencies, a flag
};

}  // namespace plimsoll::zero3
