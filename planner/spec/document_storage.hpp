// Where do the values of a document live?  Shared by the parser (planner/spec/parse_document.cpp), which fills it, and the
// document, which reads it.
#pragma once

#include <deque>
#include <memory>

#include "planner/spec/document.hpp"

namespace plimsoll {

/// All values of one document, side by side, so that destroying a deep one does not recurse.
struct DocumentStorage {
  std::shared_ptr<const SourceFile> file;
  std::deque<Node> nodes;
};

}  // namespace plimsoll
