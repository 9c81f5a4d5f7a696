// Best-first search for the plan that lacks least (planner/search/nearest.hpp).
#include "planner/search/nearest.hpp"

#include <limits>

#include "planner/base/in_parallel.hpp"

namespace plimsoll {
namespace {

double lacking_shares(Bytes on_device, Bytes on_host, const ClusterSpec& cluster) {
  const double device = std::max(0.0, on_device / cluster.device.memory - 1);
  const double host = cluster.host_memory.count > 0 ? std::max(0.0, on_host / cluster.host_memory - 1) : 0;
  return device + host;
}

class NearestSearch {
 public:
  explicit NearestSearch(RoundContext& context) : context_(context), space_(context.space) {
    for (std::uint32_t i = 0; i < space_.choices().size(); ++i) open({i, 0, 1}, is_thriftiest(space_.choices()[i]));
  }

  Nearest run() {
    take_known();
    while (!queue_.empty()) {
      if (best_ && context_.is_over(context_.deadline)) {
        return {best_, false};
      }
      std::vector<Task> tasks = next_tasks();
      in_parallel(context_.options.threads, tasks.size(), [&](std::size_t index) { work(tasks[index]); });
      for (const Task& task : tasks) enter(task);
    }
    return {best_, true};
  }

 private:
  /// What is known of a plan so far, by which it waits for its turn.
  enum class Known : std::uint8_t { closed_form_of_micro_batch, closed_form, outline };
  struct Waiting {
    bool stands_for_others = false;  ///< these come first, so that good plans of many kinds are found soon
    double lacks = 0;                ///< at least
    CandidateId id;
    Known known = Known::closed_form_of_micro_batch;
    /// The first of the queue is the greatest.
    bool operator<(const Waiting& other) const {
      const auto key = [](const Waiting& w) {
        return std::tuple(!w.stands_for_others, w.lacks, w.id.accumulation, w.id, w.known);
      };
      return key(other) < key(*this);
    }
  };
  struct Task {
    Waiting waiting;
    Scenario scenario;
    std::optional<Outline> outline;
    std::optional<Evaluated> evaluated;
  };

  bool is_beaten(const Waiting& waiting) const { return best_ && waiting.lacks >= least_; }

  /// Of choices that differ in buckets and gathers the one with small ones.
  bool is_thriftiest(const Choice& choice) const {
    Choice buckets = choice, gathers = choice;
    buckets.small_buckets = gathers.small_gathers = true;
    return (choice.small_buckets || !space_.index_of(buckets)) && (choice.small_gathers || !space_.index_of(gathers));
  }

  std::vector<std::int64_t> accumulations(const CandidateId& id) const {
    return space_.accumulations(space_.choices()[id.choice], space_.micro_batches()[id.micro]);
  }

  /// The smallest micro-batch from that one on of which there is any plan; the next waits until it was looked at.
  void open(CandidateId first, bool stands_for_others) {
    while (first.micro < space_.micro_batches().size() && accumulations(first).empty()) ++first.micro;
    if (first.micro < space_.micro_batches().size()) wait(first, stands_for_others, Known::closed_form_of_micro_batch);
  }

  /// Its candidates; of one that stands for others, that with the least accumulation does.
  void expand(const Waiting& micro_batch) {
    CandidateId id = micro_batch.id;
    const std::vector<std::int64_t> all = accumulations(id);
    for (const std::int64_t accumulation : all) {
      id.accumulation = accumulation;
      wait(id, micro_batch.stands_for_others && accumulation == all.back(), Known::closed_form);
    }
    open({id.choice, static_cast<std::uint16_t>(id.micro + 1), 1}, false);
  }

  void wait(const CandidateId& id, bool stands_for_others, Known known) {
    const PlanBounds& bounds = context_.bounds[id.choice];
    Bytes device = bounds.device_memory(space_.micro_batches()[id.micro]);
    if (known != Known::closed_form_of_micro_batch) device = std::max(device, context_.memo.least_memory(id));
    queue_.push({stands_for_others, lacking_shares(device, bounds.host_memory(), space_.asked().cluster), id, known});
  }

  void take_known() {
    for (const auto& [id, evaluated] : context_.memo.all())
      if (evaluated.judged) take(id, evaluated);
  }

  void take(const CandidateId& id, const Evaluated& evaluated) {
    const double lacks = lack(evaluated, space_.asked().cluster);
    if (best_ && std::pair(lacks, id) >= std::pair(least_, *best_)) return;
    best_ = id;
    least_ = lacks;
  }

  /// One for each thread, in turn.
  std::vector<Task> next_tasks() {
    std::vector<Task> tasks;
    while (!queue_.empty() && static_cast<int>(tasks.size()) < std::max(1, context_.options.threads)) {
      const Waiting next = queue_.top();
      queue_.pop();
      if (is_beaten(next)) continue;
      if (next.known == Known::closed_form_of_micro_batch) {
        expand(next);
        continue;
      }
      const Evaluated* known = context_.memo.find(next.id);
      if (known != nullptr && (known->judged || known->refused)) continue;
      Scenario scenario{space_.asked().model, space_.asked().cluster, {}};
      scenario.plan =
          space_.plan(space_.choices()[next.id.choice], space_.micro_batches()[next.id.micro], next.id.accumulation);
      if (space_.is_legal(scenario.plan)) tasks.push_back({next, std::move(scenario), {}, {}});
    }
    return tasks;
  }

  void work(Task& task) const {
    const bool outlines = task.waiting.known == Known::closed_form && context_.options.outline;
    if (!outlines) {
      task.evaluated = context_.evaluate(task.scenario, std::numeric_limits<double>::infinity());
      return;
    }
    // Outlines of that kind hold for two micro-batches, too.
    if (Memo::kind_of(task.waiting.id) == 0) task.scenario.plan.gradient_accumulation = 1;
    task.outline = Outline{};
    if (!context_.memo.knows_outline(task.waiting.id))
      task.outline = context_.options.outline(task.scenario, OutlineOf::memory);
  }

  void enter(const Task& task) {
    const CandidateId& id = task.waiting.id;
    if (task.outline) {
      if (task.outline->least_memory.count > 0) context_.memo.add_memory(id, *task.outline);
      return wait(id, task.waiting.stands_for_others, Known::outline);
    }
    context_.memo.add(id, *task.evaluated);
    if (task.evaluated->judged) take(id, *task.evaluated);
  }

  RoundContext& context_;
  const Space& space_;
  std::priority_queue<Waiting> queue_;
  std::optional<CandidateId> best_;
  double least_ = 0;
};

}  // namespace

double lack(const Evaluated& evaluated, const ClusterSpec& cluster) {
  return lacking_shares(cluster.device.memory - evaluated.margin, evaluated.host_per_node, cluster);
}

Nearest nearest_to_fit(RoundContext& context) { return NearestSearch(context).run(); }

}  // namespace plimsoll
