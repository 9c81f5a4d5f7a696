// Where in a file does a value stand?  A JSON document whose every value knows its place (line, column, length, JSON
// pointer), so that each diagnostic of a reader can point at what is wrong.  nlohmann::json lexes (RFC 8259, UTF-8
// checked); what a more liberal syntax allows is rewritten before it sees the text (planner/spec/json_text.hpp), in such a
// way that positions hold.
//
// ObjectReader takes typed values out of an object and collects every error: wrong types, ranges, unknown keys.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "planner/base/diagnostic.hpp"

namespace plimsoll {

struct DocumentStorage;

/// One value of a document; lives as long as a Document that holds it.
class Node {
 public:
  /// A number is an `integer` if its value is whole and fits int64, however it is written (5e8, 2.0); else a `number`.
  enum class Kind : std::uint8_t { null, boolean, integer, number, string, array, object };
  struct Member {
    std::string key;
    const Node* value;
    std::uint32_t key_begin, key_end;  ///< byte offsets of the name in the file, quotes included
  };

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::number; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }
  /// "a string", "a whole number", ... for messages.
  const char* kind_in_words() const;
  /// A number without fraction beyond int64; its kind is `number`.
  bool beyond_int64() const { return beyond_int64_; }

  // Each of these requires the kind (as_double: either kind of number).
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;
  const std::vector<const Node*>& items() const;  ///< of an array
  const std::vector<Member>& members() const;     ///< of an object, in the order of the file; duplicates included

  /// The member of that name, null if there is none or this is no object.  Of duplicate keys the last.
  const Node* find(std::string_view key) const;

  Place place() const;              ///< of the value; a container's place underlines its opening bracket
  Place key_place() const;          ///< of the member's name; as place() where the value is no member
  std::string_view key() const;     ///< name of the member whose value this is; "" if it is none
  std::string pointer() const;      ///< RFC 6901
  std::string_view source() const;  ///< the value as the file writes it

 private:
  friend class DocumentBuilder;
  Kind kind_ = Kind::null;
  bool beyond_int64_ = false;
  std::uint32_t slot_ = 0;             ///< index among the parent's items or members
  std::uint32_t begin_ = 0, end_ = 0;  ///< byte offsets in the file
  const DocumentStorage* storage_ = nullptr;
  const Node* parent_ = nullptr;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<const Node*>, std::vector<Member>>
      value_;
};

/// A parsed file; copies share the storage.
class Document {
 public:
  const Node& root() const;
  const SourceFile& file() const;

 private:
  friend class DocumentBuilder;
  std::shared_ptr<const DocumentStorage> storage_;
};

inline constexpr std::size_t document_size_limit = std::size_t{64} << 20;  ///< bytes
inline constexpr int document_depth_limit = 100;                           ///< nested arrays and objects
inline constexpr std::size_t document_value_limit = std::size_t{8} << 20;  ///< values in one document

/// What a file may hold beyond RFC 8259.
enum class Syntax : std::uint8_t {
  json,       ///< nothing but NaN and Infinity, as Python's json: a Hugging Face config.json
  commented,  ///< comments (#, //, /* */) outside strings: our own files
  hjson,      ///< comments, trailing and missing commas, keys and strings without quotes: a ds_config.json
};

/// Parses the text.  A syntax error (also: invalid UTF-8, a NUL byte, a number beyond double, too deep, too large) yields
/// one located error and no document.  Duplicate keys yield the document *and* an error each, so that a reader can go on
/// and find more; the reader's own result then has no value (see has_errors).
Result<Document> parse_document(std::shared_ptr<const SourceFile> file, Syntax syntax = Syntax::commented);

/// Reads a file.  @throws MachineError if it is missing or unreadable.
std::shared_ptr<const SourceFile> load_source(const std::string& path);

/// Place of the bytes [begin, end) of a file.
Place place_in(const std::shared_ptr<const SourceFile>& file, std::size_t begin, std::size_t end,
               std::string pointer = {});

/// Takes typed values out of one object.  A getter returns nothing where the key is absent or null, and where the value is
/// wrong, which it reports; so a reader reads on with its default and all errors come at once.  Codes are
/// "<prefix>.type", ".range", ".choice", ".missing", ".unknown".
class ObjectReader {
 public:
  /// @param node the object; anything else is reported (once) and reads as an empty object
  /// @param prefix of the diagnostics' codes, e.g. "plan" or "model"
  ObjectReader(const Node& node, Diagnostics& diagnostics, std::string prefix);

  /// The value of a key, also null ones; marks the key as known.  Null pointer if absent.
  const Node* find(std::string_view key);
  /// True if the key is present and not null; does not mark it as known.
  bool has(std::string_view key) const;

  std::optional<bool> boolean(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min = 0,
                                      std::int64_t max = std::numeric_limits<std::int64_t>::max());
  std::optional<double> number(std::string_view key, double min = std::numeric_limits<double>::lowest(),
                               double max = std::numeric_limits<double>::max());
  std::optional<std::string> string(std::string_view key);
  /// A string that must be one of `choices`: its index.
  std::optional<std::size_t> choice(std::string_view key, const std::vector<std::string>& choices);
  /// Whole numbers, each in [min, max].
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<std::vector<std::string>> strings(std::string_view key);
  const Node* object(std::string_view key);  ///< null if absent, null or no object (reported)
  const Node* array(std::string_view key);   ///< likewise

  /// As integer(), and a missing key is an error; returns `min` then.
  std::int64_t required_integer(std::string_view key, std::int64_t min = 0,
                                std::int64_t max = std::numeric_limits<std::int64_t>::max());
  /// As string(), and a missing key is an error; returns "" then.
  std::string required_string(std::string_view key);

  /// Marks keys as known without reading them.
  void know(const std::vector<std::string>& keys);
  /// Members that no getter asked for, in the order of the file.
  std::vector<const Node*> unknown() const;
  /// Reports each of them, with the nearest key that was asked for or is among `also_known`.
  void report_unknown(Severity severity = Severity::error, const std::vector<std::string>& also_known = {});

  /// Reports at the value of `key` (at the object if absent); code is "<prefix>.<code>".
  void report(Severity severity, std::string_view key, std::string_view code, std::string message,
              std::string help = {});
  /// Place of the value of `key`, of the object if absent.
  Place place(std::string_view key) const;
  const Node& node() const { return node_; }
  Diagnostics& diagnostics() { return diagnostics_; }

 private:
  const Node* typed(std::string_view key);
  void wrong_type(const Node& value, std::string_view due);
  void out_of_range(const Node& value, std::string_view range);

  const Node& node_;
  Diagnostics& diagnostics_;
  std::string prefix_;
  std::vector<std::string> known_;
};

}  // namespace plimsoll
