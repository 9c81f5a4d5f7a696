// The backend of a machine without a GPU: Eigen products, streaming loops, memcpy, and collectives between threads or
// processes.  It serves the tests and the demo, where the whole chain runs; its times are those of this machine's cores.
#include <fmt/format.h>

#include <Eigen/Core>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "calibrate/bench/backend.hpp"
#include "calibrate/bench/host/floats.hpp"
#include "calibrate/bench/host/host_collectives.hpp"
#include "calibrate/bench/machine_name.hpp"
#include "calibrate/bench/ranks.hpp"

namespace plimsoll::calibrate {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Clock = std::chrono::steady_clock;

/// Times a function by the steady clock; very short ones many at once.
class TimedWork : public Work {
 public:
  explicit TimedWork(std::function<void()> function, int calls = 1) : function_(std::move(function)), calls_(calls) {}
  std::vector<double> run(int count) override {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      for (int call = 0; call < calls_; ++call) function_();
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls_);
    }
    return times;
  }

 private:
  std::function<void()> function_;
  int calls_;
};

Floats random_floats(std::int64_t count, unsigned seed) {
  Floats values(static_cast<std::size_t>(count));
  std::minstd_rand engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : values) value = uniform(engine);
  return values;
}

std::unique_ptr<Work> product(const Point& point) {
  const auto a = std::make_shared<Matrix>(Matrix::Random(point.size("m"), point.size("k")));
  const auto b = std::make_shared<Matrix>(Matrix::Random(point.size("k"), point.size("n")));
  const auto c = std::make_shared<Matrix>(point.size("m"), point.size("n"));
  return std::make_unique<TimedWork>([a, b, c] { c->noalias() = *a * *b; });
}

/// Read, write and compute once per element; short ones are repeated within one timing.
std::unique_ptr<Work> kernel(const Point& point) {
  const std::string op = point.label("op");
  const std::int64_t count = point.size("elements");
  const auto x = std::make_shared<Floats>(random_floats(count, 1));
  const auto y = std::make_shared<Floats>(random_floats(count, 2));
  const auto z = std::make_shared<Floats>(random_floats(count, 3));
  const auto map = [count](const std::shared_ptr<Floats>& v) { return Eigen::Map<Eigen::ArrayXf>(v->data(), count); };
  const int calls = static_cast<int>(std::max<std::int64_t>(1, 65536 / count));
  if (op == "vectorized") return std::make_unique<TimedWork>([=] { map(z) = map(x) + map(y); }, calls);
  if (op == "flat_copy")
    return std::make_unique<TimedWork>([=] { std::memcpy(z->data(), x->data(), x->size() * 4); }, calls);
  if (op == "fill") return std::make_unique<TimedWork>([=] { map(z).setConstant(1); }, calls);
  if (op == "silu") return std::make_unique<TimedWork>([=] { map(z) = map(x) / (1 + (-map(x)).exp()); }, calls);
  if (op == "adamw") {
    const auto m = std::make_shared<Floats>(x->size());
    const auto v = std::make_shared<Floats>(x->size());
    return std::make_unique<TimedWork>(
        [=] {
          map(m) = 0.9F * map(m) + 0.1F * map(y);
          map(v) = 0.999F * map(v) + 0.001F * map(y).square();
          map(x) -= 1e-4F * map(m) / (map(v).sqrt() + 1e-8F);
        },
        calls);
  }
  throw Unsupported(fmt::format("the host backend has no kernel {}", op));
}

std::unique_ptr<Work> copy(const Point& point) {
  const std::int64_t count = point.size("bytes") / 4;
  const auto x = std::make_shared<Floats>(random_floats(count, 1));
  const auto y = std::make_shared<Floats>(random_floats(count, 2));
  return std::make_unique<TimedWork>([=] { std::memcpy(y->data(), x->data(), x->size() * 4); },
                                     static_cast<int>(std::max<std::int64_t>(1, 65536 / count)));
}

/// A launch is a call through a pointer here; a sync, a wait for an empty queue's lock.
std::unique_ptr<Work> host_cost(const Point& point) {
  const std::string op = point.label("op");
  if (op == "cpu_adam") {
    Point adam = point;
    adam.labels["op"] = "adamw";
    return kernel(adam);
  }
  const auto sink = std::make_shared<volatile float>(0.0F);
  if (op == "launch" || op == "sync") {
    const auto call = std::make_shared<std::function<void()>>([sink] { *sink = *sink + 1; });
    return std::make_unique<TimedWork>([call] { (*call)(); }, 10000);
  }
  throw Unsupported(fmt::format("the host backend has no cost {}", op));
}

class HostBackend : public Backend {
 public:
  explicit HostBackend(Ranks& ranks) : world_(ranks.world()) {
    if (world_ > 1)
      processes_ = ranks.names().launcher == "Open MPI" ? make_mpi_collectives() : make_tcp_collectives(ranks);
  }

  Header header() const override {
    Header h;
    h.device = "host";
    h.device_name = processor_name();
    h.machine = machine_name({h.device_name});
    h.backend = "host";
    h.date = today();
    h.versions = fmt::format("Eigen {}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
    h.multiprocessors = 1;
    h.world = world_;
    return h;
  }

  std::unique_ptr<Work> prepare(const Point& point) override {
    if (point.kind == "gemm") return product(point);
    if (point.kind == "kernel") return kernel(point);
    if (point.kind == "copy") return copy(point);
    if (point.kind == "host") return host_cost(point);
    if (point.kind == "collective") {
      if (!processes_) return thread_collective(point);
      return std::make_unique<TimedWork>(processes_->prepare(point));
    }
    throw Unsupported(fmt::format("the host backend does not measure {}", point.kind));
  }

  Conditions conditions() override { return {}; }

 private:
  int world_;
  std::unique_ptr<HostCollectives> processes_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(Ranks& ranks) { return std::make_unique<HostBackend>(ranks); }

}  // namespace plimsoll::calibrate
