// Where does a value stand?  Byte offsets become lines, columns and JSON pointers only when somebody asks for a place.
#include "planner/spec/document.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "planner/base/machine_error.hpp"
#include "planner/base/unicode.hpp"
#include "planner/spec/document_storage.hpp"

namespace plimsoll {
namespace {

int code_points(std::string_view text) { return static_cast<int>(count_code_points(text)); }

}  // namespace

const char* Node::kind_in_words() const {
  switch (kind_) {
    case Kind::null: return "null";
    case Kind::boolean: return "a boolean";
    case Kind::integer: return "a whole number";
    case Kind::number: return beyond_int64_ ? "a number beyond 64 bits" : "a number with a fraction";
    case Kind::string: return "a string";
    case Kind::array: return "an array";
    case Kind::object: return "an object";
  }
  return "";
}

bool Node::as_bool() const {
  CHECK(kind_ == Kind::boolean, "the value is a boolean");
  return std::get<bool>(value_);
}

std::int64_t Node::as_int() const {
  CHECK(kind_ == Kind::integer, "the value is a whole number");
  return std::get<std::int64_t>(value_);
}

double Node::as_double() const {
  CHECK(is_number(), "the value is a number");
  return kind_ == Kind::integer ? static_cast<double>(std::get<std::int64_t>(value_)) : std::get<double>(value_);
}

const std::string& Node::as_string() const {
  CHECK(is_string(), "the value is a string");
  return std::get<std::string>(value_);
}

const std::vector<const Node*>& Node::items() const {
  CHECK(is_array(), "the value is an array");
  return std::get<std::vector<const Node*>>(value_);
}

const std::vector<Node::Member>& Node::members() const {
  CHECK(is_object(), "the value is an object");
  return std::get<std::vector<Member>>(value_);
}

const Node* Node::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const auto& all = members();
  const auto last = std::find_if(all.rbegin(), all.rend(), [&](const Member& member) { return member.key == key; });
  return last == all.rend() ? nullptr : last->value;
}

Place Node::place() const {
  const bool container = is_array() || is_object();
  return place_in(storage_->file, begin_, container ? begin_ + 1 : end_, pointer());
}

Place Node::key_place() const {
  if (parent_ == nullptr || !parent_->is_object()) return place();
  const Member& member = parent_->members()[slot_];
  return place_in(storage_->file, member.key_begin, member.key_end, pointer());
}

std::string_view Node::key() const {
  if (parent_ == nullptr || !parent_->is_object()) return {};
  return parent_->members()[slot_].key;
}

std::string Node::pointer() const {
  std::vector<std::string> steps;
  for (const Node* node = this; node->parent_ != nullptr; node = node->parent_) {
    std::string step = node->parent_->is_array() ? std::to_string(node->slot_) : std::string();
    if (node->parent_->is_object()) {
      for (const char c : node->parent_->members()[node->slot_].key)
        step += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    }
    steps.push_back(std::move(step));
  }
  std::string pointer;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) pointer += "/" + *step;
  return pointer;
}

std::string_view Node::source() const { return std::string_view(storage_->file->text).substr(begin_, end_ - begin_); }

const Node& Document::root() const { return storage_->nodes.front(); }
const SourceFile& Document::file() const { return *storage_->file; }

Place place_in(const std::shared_ptr<const SourceFile>& file, std::size_t begin, std::size_t end, std::string pointer) {
  const std::string_view text = file->text;
  begin = std::min(begin, text.size());
  const std::size_t line_break = begin == 0 ? std::string_view::npos : text.rfind('\n', begin - 1);
  std::size_t line_begin = line_break == std::string_view::npos ? 0 : line_break + 1;
  if (line_begin == 0 && text.substr(0, 3) == "\xEF\xBB\xBF")
    line_begin = std::min<std::size_t>(begin, 3);  // a BOM is no column
  const std::size_t line_end = std::min(text.find('\n', begin), text.size());
  end = std::max(std::min(end, line_end), begin);
  Place place;
  place.file = file;
  place.line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  place.column = 1 + code_points(text.substr(line_begin, begin - line_begin));
  place.length = std::max(1, code_points(text.substr(begin, end - begin)));
  place.pointer = std::move(pointer);
  return place;
}

std::shared_ptr<const SourceFile> load_source(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw MachineError(fmt::format("{}: this is a folder", path));
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw MachineError(fmt::format("{}: the file is missing or unreadable", path));
  auto file = std::make_shared<SourceFile>();
  file->name = path;
  // One block beyond the limit is enough to see that a file is too large; /dev/zero has no end.
  std::array<char, 1 << 16> block{};
  while (stream && file->text.size() <= document_size_limit) {
    stream.read(block.data(), block.size());
    file->text.append(block.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) throw MachineError(fmt::format("{}: the file cannot be read to its end", path));
  return file;
}

}  // namespace plimsoll
