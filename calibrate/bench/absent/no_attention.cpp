// In place of cuDNN's attention in a build without its front end.
#include "calibrate/bench/cuda/points.hpp"

namespace plimsoll::calibrate::cuda {

Prepared prepare_attention(const Point& /*point*/) {
  throw Unsupported("this build has no cuDNN front end, so that attention is not measured");
}

}  // namespace plimsoll::calibrate::cuda
