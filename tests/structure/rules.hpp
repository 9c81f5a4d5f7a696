// Which folder may include what, and what must every source look like?  Each rule takes one source and returns its
// violations, "file:line: rule".
#pragma once

#include <string>
#include <vector>

#include "tests/structure/source_tree.hpp"

namespace plimsoll::structure {

using Violations = std::vector<std::string>;

/// Arrows point down only: base <- spec <- step <- account <- search, ranks beside spec, simulator beside search; and an interpreter
/// (account, simulator, runtime) does not know the model, the plan or the scenario.
Violations check_arrows(const Source& source);

/// Heavy headers stay where they are allowed; base includes the standard library and {fmt} only.
Violations check_heavy_headers(const Source& source);

/// Opens with a comment; headers have #pragma once; at most 450 lines; no conditional on CUDA, NCCL or Qt.
Violations check_shape(const Source& source);

/// No path of somebody's own machine.
Violations check_portable_text(const Source& source);

/// Tests run side by side: each writes into a folder of its own (tests/support/temporary_folder.hpp).
Violations check_temporary_files(const Source& source);

}  // namespace plimsoll::structure
