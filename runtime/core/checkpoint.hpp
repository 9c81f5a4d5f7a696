// What is saved, and how does it come back?  A checkpoint is a folder DIR/step-N with one file a rank: its shards of weights and
// moments, each piece by the parameter's name and the index of its first element, so that another number of ranks, another ep
// or another stage reads it as well.  It is written beside its final name and renamed when all files are on the disk; a
// checkpoint that is there is whole, and the last one stays until the next is.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "planner/base/diagnostic.hpp"
#include "runtime/core/state.hpp"

namespace plimsoll {

struct Progress {
  std::int64_t steps = 0;    ///< done
  std::int64_t updates = 0;  ///< of the optimizer: steps that were not skipped
};

/// Saves this rank's part; all ranks call it.
/// @param meet returns when every rank has called it
/// @throws MachineError if the disk is full or the folder cannot be written; what was there before is intact
void save_checkpoint(Execution& execution, const std::string& directory, int rank, const Progress& progress,
                     const std::function<void()>& meet);

/// The newest whole checkpoint below the directory; none: there is none.
std::optional<std::string> newest_checkpoint(const std::string& directory);

/// Fills weights and moments from a folder DIR/step-N.  @return errors if files are missing, truncated or of another model
Result<Progress> load_checkpoint(Execution& execution, const std::string& folder);

}  // namespace plimsoll
