// Does any text make the parser of documents crash?  libFuzzer: every syntax, every place and pointer.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "planner/spec/document.hpp"

namespace {

void visit(const plimsoll::Node& node) {
  using plimsoll::Node;
  (void)node.place();
  (void)node.key_place();
  (void)node.source();
  if (node.is_object()) {
    for (const Node::Member& member : node.members()) visit(*member.value);
  }
  if (node.is_array()) {
    for (const Node* item : node.items()) visit(*item);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  auto file = std::make_shared<SourceFile>();
  file->name = "fuzzed.json";
  file->text.assign(reinterpret_cast<const char*>(data), size);
  for (const Syntax syntax : {Syntax::json, Syntax::commented, Syntax::hjson}) {
    const auto document = parse_document(file, syntax);
    for (const Diagnostic& diagnostic : document.diagnostics()) (void)format(diagnostic);
    if (document && size < 4096) visit(document->root());  // places are found from the start of the file
  }
  return 0;
}
