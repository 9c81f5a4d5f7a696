// The search on its thread (gui/session/search_job.hpp).
#include "gui/session/search_job.hpp"

#include <QMetaObject>
#include <algorithm>
#include <array>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::gui {
namespace {

/// What Space chooses where the user has not stated it.
constexpr std::array searched = {"zero.stage",
                                 "expert_parallel",
                                 "moe.implementation",
                                 "moe.leaf",
                                 "fsdp.reshard_after_forward",
                                 "fsdp.replicate",
                                 "zero.reduce_bucket_size",
                                 "zero.stage3_prefetch_bucket_size",
                                 "zero.stage3_max_live_parameters",
                                 "zero.stage3_max_reuse_distance",
                                 "offload.optimizer",
                                 "offload.parameters",
                                 "optimizer.implementation",
                                 "recompute",
                                 "micro_batch",
                                 "gradient_accumulation",
                                 "world_size"};

std::string first_error(const Diagnostics& diagnostics) {
  for (const Diagnostic& diagnostic : diagnostics)
    if (diagnostic.severity == Severity::error) return format(diagnostic);
  return {};
}

}  // namespace

std::vector<std::string> keys_to_search(const ScenarioText& text) {
  std::vector<std::string> keys;
  for (const char* key : searched)
    if (text.settings.count(key) != 0) keys.emplace_back(key);
  return keys;
}

SearchJob::~SearchJob() {
  thread_.request_stop();
  run_ = 0;
}

void SearchJob::start(SearchQuestion question) {
  for (const std::string& key : question.open) question.text.settings.erase(key);
  running_ = true;
  const std::uint64_t run = ++run_;
  const auto to_here = [this, run](auto what) {
    QMetaObject::invokeMethod(
        this,
        [this, run, what = std::move(what)] {
          if (run == run_) what();
        },
        Qt::QueuedConnection);
  };
  thread_ = std::jthread([this, to_here, asked = std::move(question)](const std::stop_token& stop) {
    std::shared_ptr<const Recommendation> result;
    std::string error;
    try {
      const Inputs inputs(options_of(asked.text));
      error = first_error(inputs.diagnostics());
      if (error.empty()) {
        const auto calibration = inputs.prices();
        error = first_error(calibration.diagnostics());
        if (error.empty()) {
          RecommendOptions options;
          options.global_batch = asked.global_batch;
          options.budget_s = asked.budget_s;
          options.accept_tight = asked.accept_tight;
          options.top = 10;
          options.stop = stop;
          options.progress = [&](const SearchProgress& now) {
            const QString words = QString::fromStdString(progress_in_words(now));
            to_here([this, words] { Q_EMIT progressed(words); });
          };
          result = std::make_shared<const Recommendation>(recommend(inputs, *calibration, options));
        }
      }
    } catch (const MachineError& failure) {
      error = failure.what();
    }
    to_here([this, asked, result, error] { take(asked, result, QString::fromStdString(error)); });
  });
}

void SearchJob::cancel() { thread_.request_stop(); }

void SearchJob::take(const SearchQuestion& asked, const std::shared_ptr<const Recommendation>& result,
                     const QString& error) {
  running_ = false;
  if (result) {
    question_ = asked;
    result_ = result;
  }
  Q_EMIT finished(error);
}

}  // namespace plimsoll::gui
