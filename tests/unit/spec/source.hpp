// Texts as source files, for the tests of this folder.
#pragma once

#include <memory>
#include <string>

#include "planner/spec/document.hpp"

namespace plimsoll {

inline std::shared_ptr<const SourceFile> source(std::string text, std::string name = "test.json") {
  auto file = std::make_shared<SourceFile>();
  file->name = std::move(name);
  file->text = std::move(text);
  return file;
}

inline std::string format(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += format(diagnostic);
  return text;
}

}  // namespace plimsoll
