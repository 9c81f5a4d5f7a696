// How do samples become a calibration?  Class by class, each with its own rule (planner/spec/price_rules.hpp); what the samples
// do not cover keeps the base's entry, and is said.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/fit/residuals.hpp"
#include "calibrate/samples/sample.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll::calibrate {

struct FitResult {
  Calibration calibration;
  std::vector<Entry> entries;
  std::vector<std::string> kept;  ///< sections that come from the base
};

/// @param measured samples of one device (fit.device otherwise, an error); several machines of that device are a warning
/// @param base what the samples do not cover; its name and provenance stay with those entries
/// Errors: fit.device, fit.empty (nothing can be fitted); warnings: fit.refused for a class whose points do not determine its
/// rule, fit.left_out for a sample that says nothing, fit.kind for samples of another kind, fit.sizes for those without a size,
/// fit.unused for a file of which nothing is fitted.
Result<FitResult> fit_calibration(const std::vector<SampleFile>& measured, const Calibration& base,
                                  const std::string& name);

/// The same samples as rules are fitted to them: the rounds of a point as one, kernels without what the events around them add,
/// which is the time of an empty kernel timed so, less what it takes in a row of empty kernels (files that measured neither keep it).
std::vector<SampleFile> as_fitted(std::vector<SampleFile> files);

/// Predictions of a finished calibration for samples, class by class: what `report` and `check` show.
std::vector<Entry> compare_with(const Calibration& calibration, int multiprocessors,
                                const std::vector<Sample>& samples);

/// True if a fit of bench's samples wrote it.
bool is_from_bench(const Provenance& provenance);
/// True if it was measured or fitted otherwise, as from the traces of a framework's steps, whose kernels bench does not run.
bool is_from_framework(const Provenance& provenance);

/// True if what the calibration says for a point is of the kernel that `bench` runs there: measured by it, or a library's that
/// frameworks call, too.  Kernels of a framework's own under the same name are other kernels.
bool speaks_of(const Calibration& calibration, const Point& point);

/// FLOPs of a product, grouped product or attention point (causal: half the square; backward 2.5 times forward).
double flops_of(const Point& point);
/// Bytes that a kernel point moves: stated with the sample, or by its op and elements.
double bytes_of(const Point& point);

// One class each; they set their section of `into` and return its entries.
std::vector<Entry> fit_gemm(const Samples& samples, int multiprocessors, Calibration& into, const std::string& source);
std::vector<Entry> fit_grouped(const Samples& samples, Calibration& into, const std::string& source);
std::vector<Entry> fit_attention(const Samples& samples, Calibration& into, const std::string& source);
/// @param cache_bytes of the device's last cache; 0: not known, one rate for all sizes
std::vector<Entry> fit_kernels(const Samples& samples, double cache_bytes, Calibration& into,
                               const std::string& source);
std::vector<Entry> fit_copies(const Samples& samples, Calibration& into, const std::string& source);
std::vector<Entry> fit_collectives(const Samples& samples, Calibration& into, const std::string& source);
std::vector<Entry> fit_host(const Samples& samples, Calibration& into, const std::string& source);
std::vector<Entry> fit_pairs(const Samples& samples, Calibration& into, const std::string& source);

}  // namespace plimsoll::calibrate
