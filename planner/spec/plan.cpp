// What are the words of a plan called, and where was a key of it stated?
#include "planner/spec/plan.hpp"

namespace plimsoll {

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::deepspeed: return "deepspeed";
    case Engine::fsdp2: return "fsdp2";
    case Engine::ddp: return "ddp";
    case Engine::plimsoll: return "plimsoll";
  }
  return "";
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::bf16: return "bf16";
    case Precision::fp16: return "fp16";
    case Precision::fp32: return "fp32";
    case Precision::bf16_autocast: return "bf16_autocast";
  }
  return "";
}

const char* name_of(MoeImplementation implementation) {
  switch (implementation) {
    case MoeImplementation::native: return "native";
    case MoeImplementation::autoep: return "autoep";
    case MoeImplementation::grouped: return "grouped";
    case MoeImplementation::loop: return "loop";
    case MoeImplementation::fused: return "fused";
  }
  return "";
}

const char* name_of(AttentionImplementation implementation) {
  switch (implementation) {
    case AttentionImplementation::sdpa: return "sdpa";
    case AttentionImplementation::eager: return "eager";
    case AttentionImplementation::flash: return "flash";
  }
  return "";
}

const char* name_of(OptimizerImplementation implementation) {
  switch (implementation) {
    case OptimizerImplementation::fused: return "fused";
    case OptimizerImplementation::foreach: return "foreach";
    case OptimizerImplementation::single: return "single";
    case OptimizerImplementation::deepspeed_cpu: return "deepspeed_cpu";
    case OptimizerImplementation::torch_cpu: return "torch_cpu";
  }
  return "";
}

const char* name_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none: return "none";
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
  }
  return "";
}

const char* name_of(Construction construction) {
  switch (construction) {
    case Construction::zero_init: return "zero_init";
    case Construction::meta: return "meta";
    case Construction::gpu: return "gpu";
    case Construction::cpu: return "cpu";
  }
  return "";
}

Place place_of(const Plan& plan, std::string_view pointer) {
  for (std::string key(pointer);;) {
    const auto found = plan.places.find(key);
    if (found != plan.places.end()) return found->second;
    if (key.empty()) return {};
    key.resize(key.find('/') == std::string::npos ? 0 : key.rfind('/'));
  }
}

std::string shown_pointer(const Plan& plan, const std::string& pointer) {
  const auto found = plan.places.find(pointer);
  return found == plan.places.end() || found->second.pointer.empty() ? pointer : found->second.pointer;
}

}  // namespace plimsoll
