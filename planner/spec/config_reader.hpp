// How is one dimension taken out of a config.json whose families name it differently?  By the list of names it may have:
// the first that is there counts, a second one that says something else is a contradiction.  What is missing is collected
// and reported once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/spec/document.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/model_family.hpp"

namespace plimsoll {

class ConfigReader {
 public:
  /// @param objects the config, and the objects within it that hold dimensions too (DBRX's attn_config and ffn_config)
  /// @param places where the dimensions that were found are noted, by the names of ModelSpec::places
  ConfigReader(std::vector<ObjectReader> objects, std::map<std::string, Place>& places);

  /// The value under the first of `keys` that is present and not null; null if none is.
  const Node* find(const Keys& keys);
  bool has(const Keys& keys) { return find(keys) != nullptr; }
  /// True if the key is present, even if null.
  bool states(std::string_view key);

  std::optional<std::int64_t> integer(const Keys& keys, std::int64_t min, std::int64_t max,
                                      std::string_view place = {});
  /// A missing one goes to missing(); it, and one that is wrong, reads as 0: unknown.
  std::int64_t required(const Keys& keys, std::int64_t min, std::int64_t max, std::string_view place = {});
  bool boolean(std::string_view key, bool otherwise);
  std::optional<std::string> string(std::string_view key);
  /// One value per layer (none while the number of layers is unknown, 0): a number for all layers, an array of one per layer, or the text "list of 32, all 8".
  std::optional<std::vector<std::int64_t>> per_layer(const Keys& keys, std::int64_t layers, std::int64_t min,
                                                     std::int64_t max, std::string_view place = {});
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<std::vector<std::string>> strings(std::string_view key);
  const Node* array(std::string_view key);
  /// Values that nobody asked for.
  std::vector<const Node*> unread() const { return objects_.front().unknown(); }

  void require(std::string_view key);
  const std::vector<std::string>& missing() const { return missing_; }
  void error(const Place& place, std::string_view code, std::string message, std::string help = {});
  Place root_place() const { return objects_.front().node().place(); }
  /// A key of the config that looks like `word`.
  std::optional<std::string> similar_key(std::string_view word) const;

 private:
  struct Found {
    ObjectReader* object = nullptr;
    const Node* value = nullptr;
  };
  Found look_up(const Keys& keys);
  void note(std::string_view place, const Node& value);

  std::vector<ObjectReader> objects_;
  std::map<std::string, Place>& places_;
  std::vector<std::string> missing_;
};

}  // namespace plimsoll
